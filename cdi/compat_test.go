package cdi

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi/ldcache"
	"github.com/berth-gpu/berth/cdi/shared"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/inroot"
)

// ownMachine is the ELF machine of this machine's libraries.
func ownMachine() elf.Machine {
	if runtime.GOARCH == "arm64" {
		return elf.EM_AARCH64
	}
	return elf.EM_X86_64
}

// library returns a minimal shared library with this name.
func library(soname string, machine elf.Machine) string {
	const header, program = 64, 56
	text := "\x00" + soname + "\x00"
	dynamic := []elf.Dyn64{{Tag: int64(elf.DT_STRTAB), Val: header + 2*program + 3*16}, {Tag: int64(elf.DT_SONAME), Val: 1}, {}}
	size := uint64(header + 2*program + 3*16 + len(text))
	h := elf.Header64{Type: uint16(elf.ET_DYN), Machine: uint16(machine), Phoff: header, Phentsize: program, Phnum: 2}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS], h.Ident[elf.EI_DATA] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB)
	var b bytes.Buffer
	for _, part := range []any{h, []elf.Prog64{
		{Type: uint32(elf.PT_LOAD), Filesz: size, Memsz: size},
		{Type: uint32(elf.PT_DYNAMIC), Off: header + 2*program, Filesz: 3 * 16},
	}, dynamic, []byte(text)} {
		if err := binary.Write(&b, binary.LittleEndian, part); err != nil {
			return ""
		}
	}
	return b.String()
}

// compatPackage returns the files of NVIDIA's package of driver 570.1.2.
func compatPackage(t *testing.T, root string) {
	t.Helper()
	dir := filepath.Join(root, "usr/local/cuda-12.8/compat")
	for file, soname := range map[string]string{
		"libcuda.so.570.1.2": "libcuda.so.1", "libnvidia-gpucomp.so.570.1.2": "libnvidia-gpucomp.so.570.1.2",
		"libnvidia-nvvm.so.570.1.2": "libnvidia-nvvm.so.4",
	} {
		write(t, filepath.Join(dir, file), library(soname, ownMachine()))
	}
	must(t, os.Symlink("libcuda.so.570.1.2", filepath.Join(dir, "libcuda.so.1")))
	must(t, os.Symlink("libcuda.so.1", filepath.Join(dir, "libcuda.so")))
	must(t, os.MkdirAll(filepath.Join(root, "etc/alternatives"), 0o755))
	must(t, os.Symlink("/usr/local/cuda-12.8", filepath.Join(root, "etc/alternatives/cuda")))
	must(t, os.Symlink("/etc/alternatives/cuda", filepath.Join(root, "usr/local/cuda")))
}

// compatEntry leads to a file of the package.
func compatEntry(name, file string) ldcache.Entry {
	flags := machineOf(runtime.GOARCH).flags[64]
	return ldcache.Entry{Name: name, Path: "/usr/local/cuda/compat/" + file, Flags: flags}
}

func prepareCompat(t *testing.T, root string, spec *specs.Spec, may bool) Prepared {
	t.Helper()
	f, err := inroot.OpenRoot(root)
	must(t, err)
	defer f.Close()
	p, err := PrepareRoot(f, spec, testDir(), t.TempDir(), RootOptions{Compat: may, Shared: shared.Dir{Source: t.TempDir()}})
	must(t, err)
	return p
}

// libraryFound returns the file that the loader finds for libcuda.so.1.
func libraryFound(t *testing.T, root string) string {
	t.Helper()
	cache, err := ldcache.Parse([]byte(read(t, filepath.Join(root, "etc/ld.so.cache"))))
	must(t, err)
	i := slices.IndexFunc(cache.Entries, func(e ldcache.Entry) bool { return e.Name == "libcuda.so.1" })
	return cache.Entries[max(0, i)].Path
}

// The image's newer libraries come first in the cache, and a later ldconfig finds them first; a
// start without them restores the order.
func TestForwardCompatibility(t *testing.T) {
	root := t.TempDir()
	debianRoot(t, root)
	compatPackage(t, root)
	conf := filepath.Join(root, "etc/ld.so.conf.d", confLine)
	for range 2 {
		p := prepareCompat(t, root, &specs.Spec{}, true)
		want := []string{"the image's libraries of driver 570.1.2 in /usr/local/cuda/compat come before those of 550.1"}
		if d := cmp.Diff(want, p.Notes); d != "" || p.Target != Target {
			t.Errorf("target %s, notes (-want +got):\n%s", p.Target, d)
		}
		if d := cmp.Diff(Files(testDir(), Target, shared.Dir{}).Mounts, p.Edits.Mounts); d != "" {
			t.Errorf("mounts (-want +got):\n%s", d)
		}
		cuda, ours := "libcuda.so.570.1.2", ourEntries(Target)
		checkCache(t, root, []ldcache.Entry{
			compatEntry("libnvidia-nvvm.so.4", "libnvidia-nvvm.so.570.1.2"), compatEntry("libnvidia-nvvm.so", "libnvidia-nvvm.so.570.1.2"),
			compatEntry("libnvidia-gpucomp.so.570.1.2", "libnvidia-gpucomp.so.570.1.2"), ours[0],
			compatEntry("libcuda.so.1", cuda), ours[1], image().Entries[0], compatEntry("libcuda.so", cuda), ours[2], image().Entries[1],
		})
		checkFile(t, conf, "/usr/local/cuda/compat\n/usr/local/nvidia/lib64\n")
	}
	prepareCompat(t, root, &specs.Spec{}, false)
	if got := libraryFound(t, root); got != Target+"/lib64/libcuda.so.1" {
		t.Errorf("afterwards libcuda.so.1 is %s", got)
	}
	checkFile(t, conf, "/usr/local/nvidia/lib64\n")
}

// CUDA images let programs search /usr/local/nvidia before the cache.
func TestForwardCompatibilityOfSearchPath(t *testing.T) {
	for _, tt := range []struct {
		path   string
		target string
	}{
		{"/usr/local/nvidia/lib:/usr/local/nvidia/lib64", OtherTarget},
		{"/usr/local/cuda/lib64", Target},
		{"", Target},
	} {
		root := t.TempDir()
		debianRoot(t, root)
		compatPackage(t, root)
		p := prepareCompat(t, root, &specs.Spec{Process: &specs.Process{Env: []string{"LD_LIBRARY_PATH=" + tt.path}}}, true)
		if p.Target != tt.target || len(p.Notes) != 1 || libraryFound(t, root) != CompatDir+"/libcuda.so.570.1.2" {
			t.Errorf("%s: target %s, notes %q, %s", tt.path, p.Target, p.Notes, libraryFound(t, root))
		}
	}
}

// Without a cache and with a read-only root, the search path names all directories.
func TestForwardCompatibilityWithoutCache(t *testing.T) {
	p := &preparation{spec: &specs.Spec{Process: &specs.Process{Env: []string{"LD_LIBRARY_PATH=/mine:/usr/local/nvidia/lib64"}}}, dir: testDir(), Prepared: Prepared{Target: Target}}
	p.newer = compat{entries: []ldcache.Entry{{}}}
	for range 2 {
		p.setLibraryPath()
		must(t, p.Edits.Apply(p.spec))
		if want := []string{"LD_LIBRARY_PATH=/usr/local/cuda/compat:/mine:/usr/local/nvidia/lib64"}; !slices.Equal(p.spec.Process.Env, want) {
			t.Errorf("environment %v", p.spec.Process.Env)
		}
	}
}

// Unless everything in the directory is valid, the container starts with the host's driver.
func TestForwardCompatibilityIsRefused(t *testing.T) {
	in := func(name, content string) func(*testing.T, string) {
		return func(t *testing.T, root string) {
			path := filepath.Join(root, "usr/local/cuda-12.8/compat", name)
			must(t, os.RemoveAll(path))
			write(t, path, content)
		}
	}
	rename := func(version string) func(*testing.T, string) {
		return func(t *testing.T, root string) {
			dir := filepath.Join(root, "usr/local/cuda-12.8/compat")
			must(t, os.Rename(dir+"/libcuda.so.570.1.2", dir+"/libcuda.so."+version))
		}
	}
	const cuda = "libcuda.so.570.1.2"
	for _, tt := range []struct {
		name  string
		make  func(t *testing.T, root string)
		spec  specs.Spec
		notes int
	}{
		{name: "older", make: rename("535.104.05")},
		{name: "of the same major", make: rename("550.99")},
		{name: "no version", make: rename("9")},
		{name: "not a version", make: rename("570.1x")},
		{name: "a version of many parts", make: rename("570.1.2.3.4")},
		{name: "a huge version", make: rename("99999999999999999999.1")},
		{name: "a negative version", make: rename("-570.1")},
		{name: "not a library", make: in(cuda, "INPUT(libc.so.6)"), notes: 1},
		{name: "empty", make: in(cuda, ""), notes: 1},
		{name: "another machine's", make: in(cuda, library("libcuda.so.1", elf.EM_PPC64)), notes: 1},
		{name: "another name", make: in(cuda, library("libc.so.6", ownMachine())), notes: 1},
		{name: "a name that is a path", make: in(cuda, library("libcuda.so.1/../../x", ownMachine())), notes: 1},
		{name: "another number", make: in(cuda, library("libcuda.so.2", ownMachine())), notes: 1},
		{name: "one of its companions is broken", make: in("libnvidia-nvvm.so.570.1.2", "\x7fELF"), notes: 1},
		{name: "one of its companions has another's name", make: in("libnvidia-nvvm.so.570.1.2", library("libc.so.6", ownMachine())), notes: 1},
		{name: "one of its companions has a path for a name", make: in("libnvidia-nvvm.so.570.1.2", library("libnvidia-nvvm.so./x", ownMachine())), notes: 1},
		{name: "a directory", notes: 1, make: func(t *testing.T, root string) {
			path := filepath.Join(root, "usr/local/cuda-12.8/compat", cuda)
			must(t, os.Remove(path))
			must(t, os.Mkdir(path, 0o755))
		}},
		{name: "a FIFO", notes: 1, make: func(t *testing.T, root string) {
			path := filepath.Join(root, "usr/local/cuda-12.8/compat", cuda)
			must(t, os.Remove(path))
			must(t, unix.Mkfifo(path, 0o644))
		}},
		{name: "a link to nowhere", notes: 1, make: func(t *testing.T, root string) {
			path := filepath.Join(root, "usr/local/cuda-12.8/compat", cuda)
			must(t, os.Remove(path))
			must(t, os.Symlink("/etc/none", path))
		}},
		{name: "too many names", notes: 1, make: func(t *testing.T, root string) {
			for i := range compatNames {
				in(fmt.Sprint(i), "")(t, root)
			}
		}},
		{name: "too many libraries", notes: 1, make: func(t *testing.T, root string) {
			for i := range compatFiles {
				in(fmt.Sprintf("lib%d.so.570.1.2", i), "")(t, root)
			}
		}},
		{name: "the directory is a file", make: func(t *testing.T, root string) {
			must(t, os.Remove(root+"/usr/local/cuda"))
			write(t, root+"/usr/local/cuda", "")
		}},
		{name: "the directory is a link upwards", make: func(t *testing.T, root string) {
			must(t, os.Remove(root+"/usr/local/cuda"))
			must(t, os.Symlink("../../../../../../../..", root+"/usr/local/cuda"))
		}},
		{name: "mounted over", spec: specs.Spec{Mounts: []specs.Mount{{Destination: "/usr/local/cuda", Source: "/x"}}}},
		{name: "turned off", spec: specs.Spec{Process: &specs.Process{Env: []string{compatSwitch + "=1"}}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := filepath.Join(t.TempDir(), "root")
			debianRoot(t, root)
			compatPackage(t, root)
			if tt.make != nil {
				tt.make(t, root)
			}
			p := prepareCompat(t, root, &tt.spec, true)
			if got := libraryFound(t, root); got != Target+"/lib64/libcuda.so.1" || len(p.Notes) != tt.notes {
				t.Errorf("libcuda.so.1 is %s, notes %q", got, p.Notes)
			}
		})
	}
}

// Files of the host are never found, wherever the image's links lead.
func TestCompatStaysInTheRoot(t *testing.T) {
	host := t.TempDir()
	root := filepath.Join(host, "root")
	debianRoot(t, root)
	write(t, filepath.Join(host, "compat", "libcuda.so.570.1.2"), library("libcuda.so.1", ownMachine()))
	must(t, os.MkdirAll(filepath.Join(root, "usr/local/cuda"), 0o755))
	for _, to := range []string{filepath.Join(host, "compat"), "../../../../compat"} {
		must(t, os.RemoveAll(root+"/usr/local/cuda/compat"))
		must(t, os.Symlink(to, root+"/usr/local/cuda/compat"))
		prepareCompat(t, root, &specs.Spec{}, true)
		if got := libraryFound(t, root); got != Target+"/lib64/libcuda.so.1" {
			t.Errorf("%s: %s", to, got)
		}
	}
}

func TestCompat(t *testing.T) {
	for models, want := range map[string]bool{
		"":                        false,
		"NVIDIA H100 80GB HBM3":   true,
		"NVIDIA A100-SXM4-80GB":   true,
		"Tesla V100-SXM2-32GB":    true,
		"NVIDIA L40S":             true,
		"NVIDIA GB200":            true,
		"NVIDIA GeForce RTX 4090": false,
		"NVIDIA TITAN V":          false,
		"Quadro GV100":            false,
		"NVIDIA RTX A6000":        false,
		"NVIDIA RTX PRO 6000 Blackwell Server Edition": true,
		"NVIDIA L40S;NVIDIA GeForce RTX 4090":          false,
		"NVIDIA L40S;":                                 false,
	} {
		var leased []gpu.Device
		for model := range strings.SplitSeq(models, ";") {
			leased = append(leased, gpu.Device{Model: model})
		}
		if got := AllowsCompat(leased, usualSelection()); got != want {
			t.Errorf("%q: %v", models, got)
		}
		if AllowsCompat(leased, Selection{Capabilities: gpu.Utility | gpu.Graphics}) {
			t.Errorf("%q: without compute", models)
		}
	}
	if AllowsCompat(nil, usualSelection()) {
		t.Error("without a device")
	}
}

func TestDisabled(t *testing.T) {
	for value, want := range map[string]bool{"1": true, "true": true, "yes": true, "0": false, "": false, "false": false} {
		s := &specs.Spec{Process: &specs.Process{Env: []string{"A=1", compatSwitch + "=" + value}}}
		if got := compatDisabled(s); got != want {
			t.Errorf("%q: %v", value, got)
		}
	}
	if compatDisabled(&specs.Spec{}) || compatDisabled(&specs.Spec{Process: &specs.Process{}}) {
		t.Error("without the variable")
	}
}
