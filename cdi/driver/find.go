package driver

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi/ldcache"
	"github.com/berth-gpu/berth/gpu"
	gpudriver "github.com/berth-gpu/berth/gpu/driver"
	"github.com/berth-gpu/berth/internal/inroot"
)

// source is one file to copy.
type source struct {
	from string // path below the driver root
	to   string // path in a view, or path of an extra below the directory of extras
	lib  Library
	// caps and compat32 decide to which sets of capabilities the file belongs, see isIn.
	caps     gpu.Capabilities
	compat32 bool
	// destinations in a container, of extras only
	destinations []string
	// content that replaces the file's, if not nil
	content []byte
	size    int64
	time    int64 // time of the last change of content
}

// isIn reports whether the file belongs to a set of capabilities.
func (s source) isIn(set gpu.Capabilities) bool {
	return s.caps&set != 0 && (!s.compat32 || set.Has(gpu.Compat32))
}

// finder looks for the driver's files below a root.
type finder struct {
	root    *os.File
	version string
	machine machine
	known   map[string]library // by the file's name
}

func newFinder(root *os.File, version, goarch string) finder {
	f := finder{root: root, version: version, machine: machineOf(goarch), known: map[string]library{}}
	for _, l := range libraryTable() {
		f.known[l.fileName(version)] = l
	}
	return f
}

// fileName is the library's name on disk.
func (l library) fileName(version string) string {
	if strings.Contains(l.name, ".so.") {
		return l.name
	}
	return l.name + ".so." + version
}

// findFiles lists the driver's files, sorted by their place.
func (f finder) findFiles() ([]source, error) {
	all, err := f.findLibraries()
	if err != nil {
		return nil, err
	}
	all = append(all, f.findPrograms()...)
	slices.SortFunc(all, byPlace)
	resolveNameConflicts(all)
	extras, err := f.findExtras(namesOf(all))
	if err != nil {
		return nil, err
	}
	return append(all, extras...), nil
}

func byPlace(a, b source) int { return strings.Compare(a.to, b.to) }

func (f finder) findLibraries() ([]source, error) {
	var all []source
	seen := map[string]bool{}
	others := map[string]bool{}
	for _, dir := range SearchedDirectories(f.root) {
		for _, name := range listDirectory(f.root, dir) {
			if v, ok := otherVersion(name, f.version); ok {
				others[v] = true
			}
			row, ok := f.findRow(name)
			if !ok {
				continue
			}
			s, ok, err := f.findLibrary(dir, name, row)
			if err != nil {
				return nil, err
			}
			if ok && !seen[s.to] {
				seen[s.to] = true
				all = append(all, s)
			}
		}
	}
	return all, f.checkComplete(seen, others)
}

// findRow finds the table's row of a file; ok is false if the file isn't the driver's
// or stays on the host.
func (f finder) findRow(name string) (findRow library, ok bool) {
	if row, ok := f.known[name]; ok {
		return row, row.caps != stays
	}
	stem, versioned := strings.CutSuffix(name, ".so."+f.version)
	return unknownLibrary(), versioned && strings.HasPrefix(stem, "lib")
}

// SearchedDirectories are all directories below a driver root where the driver's libraries can be: the
// usual ones, those of 32-bit libraries, each with its vdpau directory and the directories
// below its nvidia directory (Debian: nvidia/current), and last those of the root's own loader cache.
func SearchedDirectories(root *os.File) []string {
	var dirs []string
	for _, dir := range append(gpudriver.LibraryDirectories(), "usr/lib32", "usr/lib/i386-linux-gnu", "lib/i386-linux-gnu") {
		dirs = append(dirs, dir, path.Join(dir, "vdpau"), path.Join(dir, "nvidia"))
		for _, sub := range listDirectory(root, path.Join(dir, "nvidia")) {
			dirs = append(dirs, path.Join(dir, "nvidia", sub))
		}
	}
	for _, dir := range cachedDirectories(root) {
		if !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// cachedDirectories are the directories of the driver's libraries in the root's loader cache. A cache
// that is missing or can't be read has none: the driver may be in the usual directories all the same.
func cachedDirectories(root *os.File) []string {
	data, err := inroot.ReadFile(root, "etc/ld.so.cache", ldcache.MaxSize)
	if err != nil {
		return nil
	}
	cache, err := ldcache.Parse(data)
	if err != nil {
		return nil
	}
	var dirs []string
	for _, e := range cache.Entries {
		dir := path.Dir(strings.TrimPrefix(e.Path, "/"))
		if (e.Name == "libcuda.so.1" || strings.HasPrefix(e.Name, "libnvidia-")) && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	slices.Sort(dirs)
	return dirs
}

// listDirectory returns the sorted entries of a directory, none if it isn't a directory.
func listDirectory(root *os.File, dir string) []string {
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

// otherVersion returns the version of another driver's libcuda.so, for an error message.
func otherVersion(name, version string) (string, bool) {
	v, ok := strings.CutPrefix(name, "libcuda.so.")
	return v, ok && v != version && strings.Contains(v, ".")
}

// findLibrary examines one file; ok is false if it isn't a library of this machine.
func (f finder) findLibrary(dir, name string, row library) (s source, ok bool, err error) {
	from := path.Join(dir, name)
	in, err := inroot.OpenFile(f.root, from)
	if isAbsent(err) {
		return source{}, false, nil
	}
	if err != nil {
		return source{}, false, err
	}
	defer in.Close() // only read from
	soname, bits, err := f.machine.inspectELF(in)
	if err != nil {
		return source{}, false, fmt.Errorf("library %s: %w", in.Name(), err)
	}
	fi, err := in.Stat()
	if err != nil || bits == 0 {
		return source{}, false, err
	}
	to := path.Join(LibDir(bits), name)
	s = source{from: from, to: to, caps: row.caps, compat32: bits == 32, size: fi.Size(), time: fi.ModTime().UnixNano()}
	s.lib = Library{File: to, Names: linkNames(name, soname), Bits: bits}
	return s, true, nil
}

// isAbsent reports whether there is no such file, or nothing that could be one.
func isAbsent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, inroot.ErrNotRegular) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR)
}

// inspectELF reads SONAME and word size; bits is 0 for another machine's library.
func (m machine) inspectELF(f *os.File) (soname string, bits int, err error) {
	l, err := ldcache.ReadLibrary(f)
	if err != nil {
		return "", 0, err
	}
	if strings.ContainsAny(l.SONAME, "/\x00") || l.SONAME == "." || l.SONAME == ".." {
		return "", 0, fmt.Errorf("soname %q isn't the name of a file", l.SONAME)
	}
	return l.SONAME, m.bits[l.Machine], nil
}

// checkComplete returns an error that names the first required library that is missing.
func (f finder) checkComplete(seen, others map[string]bool) error {
	for _, l := range libraryTable() {
		file := l.fileName(f.version)
		if l.need != required || seen[path.Join(LibDir(64), file)] {
			continue
		}
		if len(others) > 0 {
			return fmt.Errorf("%s not found, but version %s: kernel module and libraries don't match: %w", file, strings.Join(sortedNames(others), ", "), fs.ErrNotExist)
		}
		return fmt.Errorf("%s not found; set host.driver_root to where the driver is installed: %w", file, fs.ErrNotExist)
	}
	return nil
}

func sortedNames(set map[string]bool) []string {
	var all []string
	for v := range set {
		all = append(all, v)
	}
	slices.Sort(all)
	return all
}

// findPrograms leaves out scripts: some hosts have one in /usr/bin that calls the driver's program
// where it is installed, which isn't that place in a container.
func (f finder) findPrograms() []source {
	var all []source
	for _, p := range programTable() {
		for _, dir := range programDirs() {
			if s, fi, ok := f.findFile(dir, p.name); ok && fi.Mode()&0o111 != 0 && f.isELF(s.from) {
				s.to, s.caps = "bin/"+p.name, p.caps
				all = append(all, s)
				break
			}
		}
	}
	return all
}

// isELF reports whether a file begins as ELF files do.
func (f finder) isELF(file string) bool {
	in, err := inroot.OpenFile(f.root, file)
	if err != nil {
		return false
	}
	defer in.Close() // only read from
	magic := make([]byte, len(elf.ELFMAG))
	_, err = io.ReadFull(in, magic)
	return err == nil && string(magic) == elf.ELFMAG
}

// findFile examines one optional file.
func (f finder) findFile(dir, name string) (source, fs.FileInfo, bool) {
	from := path.Join(dir, name)
	in, err := inroot.OpenFile(f.root, from)
	if err != nil {
		return source{}, nil, false
	}
	defer in.Close() // only read from
	fi, err := in.Stat()
	if err != nil {
		return source{}, nil, false
	}
	return source{from: from, size: fi.Size(), time: fi.ModTime().UnixNano()}, fi, true
}
