// Package everyday does with berth what people do with docker every day.
//
// The same scripts are run with both in one host, a simulated server with Debian's
// docker, and what they print, say and leave is compared: docs/reference/everyday.md is the list of
// the differences that are meant. The other tests sit at a real terminal (tmux), and have
// a hundred tasks share eight GPUs while their processes are killed.
//
// TestHabits types what users of docker, Apptainer and Slurm type, on a simulated server: docs/reference/habits.md is its result.
//
// What needs docker is run by make test-engines; without it TestHabits alone is.
package everyday

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"testing"

	ispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-gpu/berth/test/image/oci"
	"github.com/berth-gpu/berth/test/images/fake"
	"github.com/berth-gpu/berth/test/rack"
	"github.com/berth-gpu/berth/test/rig"
	"github.com/berth-gpu/berth/test/simnode/sim"
)

// asked is set by make test-engines.
const asked = "BERTH_TEST_ENGINES"

// serves is set if this program is to be a registry: a directory with images.
const serves = "BERTH_TEST_EVERYDAY_IMAGES"

// registry is the registry's address in the host.
const registry = "127.0.0.1:5000"

var shared *rig.Rig

func TestMain(m *testing.M) {
	if was, err := sim.Loader(os.Args); was { // a part of a node, without this environment
		if err != nil {
			fmt.Fprintln(os.Stderr, "everyday:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if dir := os.Getenv(serves); dir != "" {
		fmt.Fprintln(os.Stderr, http.ListenAndServe(registry, &fake.Registry{Dir: dir}))
		os.Exit(1)
	}
	rig.Main(m, func(r *rig.Rig) error {
		shared = r
		if os.Getenv(asked) == "1" {
			rack.Sweep()
		}
		return errors.Join(os.Chmod(r.Dir, 0o755), images(r.Dir+"/images"))
	})
}

// skipUnlessWanted skips a test unless engine tests were requested.
func skipUnlessWanted(t *testing.T) {
	t.Helper()
	if os.Getenv(asked) != "1" {
		t.Skip("needs engines: make test-engines")
	}
}

// images makes the images of the scripts: busybox, and one with more metadata.
func images(dir string) error {
	program, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	data, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	applets, err := exec.Command(program, "--list").Output()
	if err != nil {
		return err
	}
	layers := func() []oci.Layer {
		people := oci.Tar(
			oci.File{Name: "etc/passwd", Body: "root:x:0:0:root:/root:/bin/sh\nann:x:1234:1234::/home/ann:/bin/sh\n"},
			oci.File{Name: "etc/group", Body: "root:x:0:\nann:x:1234:\nstaff:x:50:ann\n"},
		)
		return []oci.Layer{
			{Tar: oci.Tar(oci.Busybox(data, words(string(applets)))...), Compression: "gzip"},
			{Tar: people, Compression: "gzip"},
		}
	}
	path := "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	return oci.Write(dir,
		oci.Image{Tag: "latest", Layers: layers(), Config: ispec.ImageConfig{Env: []string{path}, Cmd: []string{"sh"}}},
		oci.Image{Tag: "full", Layers: layers(), Config: ispec.ImageConfig{
			Env: []string{path, "OF=image", "BOTH=image"}, Entrypoint: []string{"sh", "-c", `echo "$0 $@: $OF $BOTH $(id -u) $PWD"`},
			Cmd: []string{"one", "two"}, WorkingDir: "/of/image", User: "ann", StopSignal: "SIGUSR1", Labels: map[string]string{"of": "image"},
		}},
	)
}
