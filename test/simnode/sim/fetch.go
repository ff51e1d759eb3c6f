package sim

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// debianDir is the directory of a fetched driver of the version.
func debianDir(cache, version string) string {
	return filepath.Join(cache, debianName(version))
}

func debianName(version string) string { return "debian-" + version }

// Debian's suite with the driver version of the profiles.
const suite = "trixie"

// packages of the driver's user space; libnvidia-ml and nvidia-smi are ours.
func packages() []string {
	return []string{
		"libcuda1", "libcudadebugger1", "libnvidia-ptxjitcompiler1", "libnvidia-nvvm4", "libnvidia-cfg1",
		"libnvidia-gpucomp", "libnvidia-encode1", "libnvcuvid1", "libnvidia-opticalflow1", "nvidia-opencl-icd",
		"nvidia-cuda-mps", "nvidia-driver-bin",
	}
}

// Fetch brings NVIDIA's user-space driver from Debian's non-free into the cache,
// for option Driver. It asks apt with a configuration of its own; the machine's
// is neither read nor changed. What is in the cache isn't fetched again.
func Fetch() (string, error) {
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	version := dgxH100().Driver
	stub, err := buildStub(cache, version)
	if err != nil {
		return "", err
	}
	return cached(cache, debianName(version), func(dir string) error {
		apt := filepath.Join(dir, "apt")
		if err := download(apt, version); err != nil {
			return err
		}
		root, err := unpack(apt)
		if err != nil {
			return err
		}
		if err := flatten(root, dir, version); err != nil {
			return err
		}
		return errors.Join(copyMissing(filepath.Join(stub, "bin"), filepath.Join(dir, "bin")), os.RemoveAll(apt))
	})
}

func unpack(apt string) (root string, err error) {
	debs, err := filepath.Glob(filepath.Join(apt, "*.deb"))
	if err != nil {
		return "", fmt.Errorf("list packages: %w", err)
	}
	root = filepath.Join(apt, "root")
	for _, deb := range debs {
		if out, err := exec.Command("dpkg-deb", "-x", deb, root).CombinedOutput(); err != nil {
			return "", fmt.Errorf("unpack %s: %w: %s", filepath.Base(deb), err, out)
		}
	}
	return root, nil
}

// copyMissing copies programs that are missing.
func copyMissing(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return fmt.Errorf("list programs: %w", err)
	}
	for _, e := range entries {
		target := filepath.Join(to, e.Name())
		if _, err := os.Lstat(target); err == nil {
			continue
		}
		b, err := os.ReadFile(filepath.Join(from, e.Name()))
		if err != nil {
			return fmt.Errorf("read program: %w", err)
		}
		if err := os.WriteFile(target, b, 0o755); err != nil {
			return fmt.Errorf("write program: %w", err)
		}
	}
	return nil
}

// download leaves the packages in the directory apt.
func download(apt, version string) error {
	if _, err := exec.LookPath("apt-get"); err != nil {
		return errors.New("no apt-get: NVIDIA's driver comes from Debian's packages")
	}
	if err := makeDirs(filepath.Join(apt, "lists/partial"), filepath.Join(apt, "archives/partial")); err != nil {
		return err
	}
	archive, err := mirror()
	if err != nil {
		return err
	}
	source := "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] " + archive + " " + suite + " non-free\n"
	if err := os.WriteFile(filepath.Join(apt, "sources.list"), []byte(source), 0o644); err != nil {
		return fmt.Errorf("write list of sources: %w", err)
	}
	options := []string{
		"-q", "-o", "Dir::Etc::sourcelist=" + filepath.Join(apt, "sources.list"), "-o", "Dir::Etc::sourceparts=-",
		"-o", "Dir::State::lists=" + filepath.Join(apt, "lists"), "-o", "Dir::Cache=" + apt,
		"-o", "Dir::State::status=/dev/null", "-o", "APT::Sandbox::User=root",
		"-o", "Acquire::Check-Valid-Until=false", "-o", "Acquire::Check-Date=false", "-o", "Acquire::Retries=2",
	}
	if err := aptGet(apt, append(options, "update")...); err != nil {
		return err
	}
	var wanted []string
	for _, name := range packages() {
		wanted = append(wanted, name+"="+version+"-*")
	}
	return aptGet(apt, append(append(options, "download"), wanted...)...)
}

func aptGet(dir string, args ...string) error {
	cmd := exec.Command("apt-get", args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("apt-get %s: %w: %s", args[len(args)-1], err, out)
	}
	return nil
}

// mirror returns the Debian archive that the machine itself uses.
func mirror() (string, error) {
	out, err := exec.Command("apt-get", "indextargets", "--format", "$(REPO_URI)").Output()
	if err != nil {
		return "", fmt.Errorf("ask apt for its sources: %w", err)
	}
	for uri := range strings.FieldsSeq(string(out)) {
		if strings.HasSuffix(strings.TrimSuffix(uri, "/"), "/debian") {
			return uri, nil
		}
	}
	return "", errors.New("no Debian archive among apt's sources")
}

// flatten puts libraries and programs where NVIDIA's own installer would, which
// has no alternatives, with the links that the sonames ask for.
func flatten(root, dir, version string) error {
	lib, bin := filepath.Join(dir, "lib"), filepath.Join(dir, "bin")
	if err := makeDirs(lib, bin); err != nil {
		return err
	}
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		switch name := e.Name(); {
		case strings.HasSuffix(name, ".so."+version):
			return placeLibrary(path, lib)
		case slices.Contains(programs(), name):
			return os.Rename(path, filepath.Join(bin, name))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("sort driver's files: %w", err)
	}
	return nil
}

func placeLibrary(path, lib string) error {
	f, err := elf.Open(path)
	if err != nil {
		return err
	}
	sonames, err := f.DynString(elf.DT_SONAME)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	name := filepath.Base(path)
	if err := os.Rename(path, filepath.Join(lib, name)); err != nil {
		return err
	}
	if len(sonames) != 1 || sonames[0] == name {
		return nil
	}
	if err := os.Symlink(name, filepath.Join(lib, sonames[0])); err != nil || sonames[0] != "libcuda.so.1" {
		return err
	}
	return os.Symlink(sonames[0], filepath.Join(lib, "libcuda.so"))
}
