package driver

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi/ldcache"
	"github.com/berth-gpu/berth/internal/inroot"
)

// required libraries: without them no CUDA program works, and a directory isn't made.
func required() []string { return []string{"libcuda.so", "libnvidia-ml.so"} }

// unversioned are libraries of the driver whose file names don't end in its
// version. They are optional: newer drivers have them, older ones don't.
func unversioned() []string { return []string{"libnvidia-nvvm70.so.4"} }

// programs that belong to the driver, all optional.
func programs() []string {
	return []string{
		"nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "nvidia-debugdump",
		"nvidia-imex", "nvidia-imex-ctl", "nvidia-persistenced", "nvidia-smi",
	}
}

// libraryDirs are where distributions and NVIDIA's installer put libraries, below
// the driver root. Of two files of one name the first counts.
func libraryDirs() []string {
	dirs := []string{"usr/lib64", "lib64", "usr/lib", "lib", "usr/lib32"}
	for _, triple := range []string{"x86_64-linux-gnu", "aarch64-linux-gnu", "i386-linux-gnu"} {
		dirs = append(dirs, "usr/lib/"+triple, "lib/"+triple)
	}
	return dirs
}

// programDirs likewise; Debian keeps programs beside the libraries, behind
// links in usr/bin that lead through /etc/alternatives.
func programDirs() []string {
	return []string{"usr/bin", "usr/sbin", "bin", "sbin", "usr/local/bin", "opt/bin", "usr/lib/nvidia/current"}
}

// source is one file to take over.
type source struct {
	from string // path below the driver root
	to   string // path in the directory
	lib  Library
	size int64
	time int64 // of the last change of content, in nanoseconds
}

// find lists the driver's files, sorted by their place in the directory.
func find(root *os.File, version string) ([]source, error) {
	var all []source
	seen := map[string]bool{}
	others := map[string]bool{}
	for _, dir := range searched(root) {
		for _, name := range list(root, dir) {
			if v, ok := otherVersion(name, version); ok {
				others[v] = true
			}
			if !ours(name, version) {
				continue
			}
			s, ok, err := library(root, dir, name)
			if err != nil {
				return nil, err
			}
			if ok && !seen[s.to] {
				seen[s.to] = true
				all = append(all, s)
			}
		}
	}
	if err := complete(seen, version, others); err != nil {
		return nil, err
	}
	all = append(all, findPrograms(root)...)
	slices.SortFunc(all, func(a, b source) int { return strings.Compare(a.to, b.to) })
	settleNames(all)
	return all, nil
}

// settleNames leaves each name of a directory to one library: a file keeps its
// name, a SONAME comes before a link without a number, and of equals the first has it.
func settleNames(all []source) {
	taken := map[string]bool{}
	for _, s := range all {
		taken[s.to] = true
	}
	for _, plain := range []bool{false, true} {
		for i := range all {
			l := &all[i].lib
			l.Names = slices.DeleteFunc(l.Names, func(name string) bool {
				to := path.Join(path.Dir(l.File), name)
				if strings.HasSuffix(name, ".so") != plain {
					return false
				}
				lost := taken[to]
				taken[to] = true
				return lost
			})
		}
	}
}

// searched adds to the library directories what is below their nvidia directory
// (Debian: nvidia/current).
func searched(root *os.File) []string {
	var dirs []string
	for _, dir := range libraryDirs() {
		dirs = append(dirs, dir, path.Join(dir, "nvidia"))
		for _, sub := range list(root, path.Join(dir, "nvidia")) {
			dirs = append(dirs, path.Join(dir, "nvidia", sub))
		}
	}
	return dirs
}

// list names the entries of a directory, sorted; of what is none, nothing.
func list(root *os.File, dir string) []string {
	d, err := inroot.OpenDir(root, dir)
	if err != nil {
		return nil
	}
	defer d.Close() // only read from
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil
	}
	slices.Sort(names)
	return names
}

func ours(name, version string) bool {
	stem, versioned := strings.CutSuffix(name, ".so."+version)
	return versioned && strings.HasPrefix(stem, "lib") || slices.Contains(unversioned(), name)
}

// otherVersion finds libcuda.so.VERSION of another driver, to say so in an error.
func otherVersion(name, version string) (string, bool) {
	v, ok := strings.CutPrefix(name, "libcuda.so.")
	return v, ok && v != version && strings.Contains(v, ".")
}

// library looks at one file; ok is false if it isn't a library of this machine.
func library(root *os.File, dir, name string) (s source, ok bool, err error) {
	from := path.Join(dir, name)
	f, err := inroot.OpenFile(root, from)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, inroot.ErrNotRegular) || errors.Is(err, unix.ELOOP) {
		return source{}, false, nil
	}
	if err != nil {
		return source{}, false, err
	}
	defer f.Close() // only read from
	soname, bits, err := inspect(f)
	if err != nil {
		return source{}, false, fmt.Errorf("library %s: %w", f.Name(), err)
	}
	fi, err := f.Stat()
	if err != nil || bits == 0 {
		return source{}, false, err
	}
	to := path.Join(LibDir(bits), name)
	s = source{from: from, to: to, size: fi.Size(), time: fi.ModTime().UnixNano()}
	s.lib = Library{File: to, Names: linkNames(name, soname), Bits: bits, Size: fi.Size()}
	return s, true, nil
}

// inspect reads SONAME and word size; bits is 0 for another machine's library.
func inspect(f *os.File) (soname string, bits int, err error) {
	l, err := ldcache.SONAME(f)
	if err != nil {
		return "", 0, err
	}
	if strings.ContainsAny(l.SONAME, "/\x00") || l.SONAME == "." || l.SONAME == ".." {
		return "", 0, fmt.Errorf("soname %q isn't the name of a file", l.SONAME)
	}
	return l.SONAME, machines()[l.Machine], nil
}

// machines whose libraries this machine's programs load, with their word sizes.
func machines() map[elf.Machine]int {
	if runtime.GOARCH == "arm64" {
		return map[elf.Machine]int{elf.EM_AARCH64: 64, elf.EM_ARM: 32}
	}
	return map[elf.Machine]int{elf.EM_X86_64: 64, elf.EM_386: 32}
}

// linkNames are the links that a library needs beside it: its SONAME, and the name
// without a number, which some programs open.
func linkNames(file, soname string) []string {
	names := []string{}
	if soname == "" {
		return names
	}
	if soname != file {
		names = append(names, soname)
	}
	if stem, _, ok := strings.Cut(soname, ".so."); ok && stem+".so" != file && soname != file {
		names = append(names, stem+".so")
	}
	return names
}

func complete(seen map[string]bool, version string, others map[string]bool) error {
	for _, lib := range required() {
		file := lib + "." + version
		if seen[path.Join(LibDir(64), file)] {
			continue
		}
		if len(others) > 0 {
			return fmt.Errorf("%s not found, but version %s: kernel module and libraries don't match: %w", file, strings.Join(sorted(others), ", "), fs.ErrNotExist)
		}
		return fmt.Errorf("%s not found: %w", file, fs.ErrNotExist)
	}
	return nil
}

func sorted(set map[string]bool) []string {
	var all []string
	for v := range set {
		all = append(all, v)
	}
	slices.Sort(all)
	return all
}

func findPrograms(root *os.File) []source {
	var all []source
	for _, name := range programs() {
		for _, dir := range programDirs() {
			if s, ok := program(root, dir, name); ok {
				all = append(all, s)
				break
			}
		}
	}
	return all
}

func program(root *os.File, dir, name string) (source, bool) {
	f, err := inroot.OpenFile(root, path.Join(dir, name))
	if err != nil {
		return source{}, false
	}
	defer f.Close() // only read from
	fi, err := f.Stat()
	if err != nil || fi.Mode()&0o111 == 0 {
		return source{}, false
	}
	return source{from: path.Join(dir, name), to: "bin/" + name, size: fi.Size(), time: fi.ModTime().UnixNano()}, true
}
