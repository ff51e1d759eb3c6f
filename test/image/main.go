// Command image writes the OCI image layouts that the demo and the tests run:
//
//	image -out DIR -tag TAG [-cmd CMD] ROOT.tar    a layer that was made elsewhere
//	image -out DIR -tag TAG -busybox PROGRAM       a small root made here
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	ispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-gpu/berth/test/image/oci"
)

func main() {
	out := flag.String("out", "", "directory of the layout; it is replaced")
	tag := flag.String("tag", "latest", "the image's tag")
	cmd := flag.String("cmd", "/bin/sh", "the image's command")
	busybox := flag.String("busybox", "", "static busybox to make a root file system of")
	flag.Parse()
	if err := run(*out, *tag, *cmd, *busybox, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(out, tag, cmd, busybox string, args []string) error {
	if out == "" || (busybox == "") != (len(args) == 1) {
		return errors.New("-out and one of -busybox and an archive are needed")
	}
	layer, err := open(busybox, args)
	if err != nil {
		return err
	}
	tmp := out + ".tmp"
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	img := oci.Image{
		Tag: tag,
		Config: ispec.ImageConfig{
			Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			Cmd: []string{cmd},
		},
		Layers: []oci.Layer{{Tar: layer, Compression: "gzip"}},
	}
	if err := oci.Write(tmp, img); err != nil {
		return err
	}
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	return os.Rename(tmp, out)
}

func open(busybox string, args []string) (io.Reader, error) {
	if busybox == "" {
		return os.Open(args[0]) // closed by the end of the program
	}
	program, err := os.ReadFile(busybox)
	if err != nil {
		return nil, err
	}
	list, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("list applets of %s: %w", busybox, err)
	}
	return oci.Tar(oci.Busybox(program, strings.Fields(string(bytes.TrimSpace(list))))...), nil
}
