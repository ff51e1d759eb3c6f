// Package packages holds black-box tests of the packages: built twice, installed,
// upgraded, removed and purged by dpkg and rpm on simulated GPU servers that a real
// systemd has booted. There users share GPUs with berth's packages and Debian's other ones, too.
//
// It uses the root file systems of test/engines and so is run by make test-packages.
package packages

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rack"
)

// asked is set by make test-packages.
const asked = "BERTH_TEST_ENGINES"

// shared is a directory that the hosts see too, with the program simnode, the packages and a
// container's root file system.
var shared string

// The versions that are built, an older and a newer one.
const older, newer = "1.0.0", "1.1.0"

func TestMain(m *testing.M) {
	if os.Getenv(asked) != "1" {
		os.Exit(m.Run()) // each test says that it is skipped
	}
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "packages:", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	if os.Geteuid() != 0 {
		return 1, errors.New("needs root")
	}
	rack.Sweep()
	if shared, err = os.MkdirTemp("", "berth-packages-"); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(shared)) }()
	for _, version := range []string{older, newer} {
		if err := build("../..", version, "amd64"); err != nil {
			return 1, err
		}
	}
	image := filepath.Join(shared, "image")
	for _, dir := range []string{"dev", "proc", "sys", "etc", "tmp", "nodes"} {
		if err := os.MkdirAll(filepath.Join(image, dir), 0o755); err != nil {
			return 1, err
		}
	}
	probe := exec.Command("cc", "-O1", "-static", "-o", image+"/probe", "../hook/testdata/probe.c")
	if out, err := probe.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("compile the probe: %w: %s", err, out)
	}
	if err := rack.Simnode(filepath.Join(shared, "simnode")); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// skipUnlessWanted skips a test unless it was requested.
func skipUnlessWanted(t *testing.T) {
	t.Helper()
	if os.Getenv(asked) != "1" {
		t.Skip("needs engines: make test-packages")
	}
}

// build builds the packages of a source tree into shared.
func build(source, version, arch string, env ...string) error {
	return buildInto(shared, source, version, arch, env...)
}

func buildInto(dir, source, version, arch string, env ...string) error {
	cmd := exec.Command("packaging/build.sh", append([]string{dir}, strings.Fields(arch)...)...)
	cmd.Dir = source
	cmd.Env = append(append(os.Environ(), "VERSION="+version, "SOURCE_DATE_EPOCH=1700000000"), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build packages: %w: %s", err, out)
	}
	return nil
}

func deb(version string) string { return filepath.Join(shared, "berth_"+version+"_amd64.deb") }

func rpm(version string) string { return filepath.Join(shared, "berth-"+version+"-1.x86_64.rpm") }
