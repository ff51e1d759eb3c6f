package rig

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/sylabs/sif/v2/pkg/sif"
)

// MakeImages makes the OCI layouts that ImagePath returns, unless they are there. Tests run in a
// folder of test.
func MakeImages() error {
	if out, err := exec.Command("../image/make.sh").CombinedOutput(); err != nil {
		return fmt.Errorf("make images: %w: %s", err, out)
	}
	return nil
}

// ImagePath returns the path of an OCI layout: "busybox", or "debian", which has glibc.
func ImagePath(t testing.TB, name string) string {
	t.Helper()
	path, err := filepath.Abs("../../.cache/image/" + name)
	Must(t, err)
	return path
}

// MakeSIF makes a SIF file from an image of one layer, and returns its path, which all users may read. scripts are files of the image.
func MakeSIF(t testing.TB, name string, scripts map[string]string) string {
	t.Helper()
	dir := makePublicDir(t)
	root := filepath.Join(dir, "root")
	Must(t, os.Mkdir(root, 0o755))
	var layers []string
	for _, blob := range globAll(t, filepath.Join(ImagePath(t, name), "blobs/sha256/*")) {
		if exec.Command("tar", "tf", blob).Run() == nil {
			layers = append(layers, blob)
		}
	}
	if len(layers) != 1 {
		t.Fatalf("image %s has %d layers", name, len(layers))
	}
	output(t, "tar", "xf", layers[0], "-C", root)
	for path, text := range scripts {
		Must(t, os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755))
		Must(t, os.WriteFile(filepath.Join(root, path), []byte(text), 0o755))
	}
	return PackSIF(t, root)
}

// PackSIF makes a SIF file of a directory, with its device nodes if there are any, and returns its path. All users may read it. options are mksquashfs's.
func PackSIF(t testing.TB, root string, options ...string) string {
	t.Helper()
	dir := makePublicDir(t)
	squashfs, file := filepath.Join(dir, "squashfs"), filepath.Join(dir, "image.sif")
	output(t, append([]string{"mksquashfs", root, squashfs, "-all-root", "-noappend", "-quiet", "-no-progress", "-processors", "1"}, options...)...)
	f, err := os.Open(squashfs)
	Must(t, err)
	defer f.Close()
	d, err := sif.NewDescriptorInput(sif.DataPartition, f, sif.OptPartitionMetadata(sif.FsSquash, sif.PartPrimSys, runtime.GOARCH))
	Must(t, err)
	image, err := sif.CreateContainerAtPath(file, sif.OptCreateWithDescriptors(d), sif.OptCreateWithLaunchScript("#!/usr/bin/env run-singularity\n"))
	Must(t, err)
	Must(t, image.UnloadContainer())
	Must(t, os.Chmod(file, 0o644))
	return file
}

// makePublicDir makes a directory that all users may read.
func makePublicDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		Must(t, os.Chmod(d, 0o755))
	}
	return dir
}

func globAll(t testing.TB, pattern string) []string {
	t.Helper()
	all, err := filepath.Glob(pattern)
	Must(t, err)
	return all
}

func output(t testing.TB, words ...string) {
	t.Helper()
	if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%q: %v: %s", words, err, out)
	}
}
