package cdi

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi/driver"
	"github.com/berth-gpu/berth/cdi/ldcache"
	"github.com/berth-gpu/berth/internal/inroot"
)

const (
	cachePath = "/etc/ld.so.cache"
	confPath  = "/etc/ld.so.conf"
	// confLine sorts before what distributions and images put there: of two
	// libraries of one name ldconfig prefers the one it found first.
	confLine = "00-berth.conf"

	// LoaderLine is the file from which ldconfig makes a container's loader cache anew with the
	// driver's libraries.
	LoaderLine = confPath + ".d/" + confLine

	confLimit = 1 << 20
)

// configureLoader makes the container's dynamic loader find the libraries: by its cache, or, if the
// cache can't be replaced, by LD_LIBRARY_PATH.
func (p *preparation) configureLoader() error {
	if p.isHidden(cachePath) {
		p.addNote("a mount hides %s: the driver's libraries are found by LD_LIBRARY_PATH", cachePath)
		p.setLibraryPath()
		return nil
	}
	old, err := p.readCache()
	if err != nil || old == nil && !slices.ContainsFunc(thisMachine().loaders, p.pathExists) {
		return err
	}
	merged := p.mergedCache(old)
	if p.writable {
		err := p.writeCache(old, merged)
		if !isUnwritable(err) {
			return err
		}
	}
	return p.bindCache(old, merged)
}

// isHidden reports whether a mount of the spec, other than ours, covers the path.
func (p *preparation) isHidden(name string) bool {
	for _, m := range p.spec.Mounts {
		d := path.Clean(m.Destination)
		ours := d == name && strings.HasPrefix(m.Source, p.shared.PathForContainers(p.caches().dir)+"/")
		if !ours && d != "/" && (d == name || strings.HasPrefix(name, d+"/")) {
			return true
		}
	}
	return false
}

// readCache returns nil if there is no cache. An empty cache counts as none.
func (p *preparation) readCache() ([]byte, error) {
	old, err := inroot.ReadFile(p.root, cachePath, ldcache.MaxSize)
	// A link that leads to itself counts as no cache, for the loader too.
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ELOOP) {
		return nil, nil
	}
	return old, err
}

// isUnwritable reports whether err means that the root can't be written: it is read-only, full, or
// access is denied.
func isUnwritable(err error) bool {
	return slices.ContainsFunc([]error{unix.EROFS, unix.EPERM, unix.EACCES, unix.ENOSPC, unix.EDQUOT}, func(e error) bool {
		return errors.Is(err, e)
	})
}

func (p *preparation) writeCache(old, merged []byte) error {
	etc, err := p.openEtc()
	if err != nil {
		return err
	}
	defer etc.Close() // an O_PATH descriptor
	owner, err := inroot.OwnerOf(etc)
	if err != nil {
		return err
	}
	if err := p.writeConf(etc, owner); err != nil {
		return err
	}
	if bytes.Equal(old, merged) {
		return nil
	}
	return inroot.Replace(etc, path.Base(cachePath), merged, 0o644, owner)
}

func (p *preparation) openEtc() (*os.File, error) {
	etc, err := inroot.Open(p.root, "etc", unix.O_DIRECTORY)
	if !errors.Is(err, fs.ErrNotExist) {
		return etc, err
	}
	if err := inroot.Mkdir(p.root, "etc", 0o755); err != nil {
		return nil, err
	}
	return inroot.Open(p.root, "etc", unix.O_DIRECTORY)
}

// bindCache binds the merged cache over that of a root that can't be written.
func (p *preparation) bindCache(old, merged []byte) error {
	if bytes.Equal(old, merged) {
		return nil
	}
	if old == nil {
		p.addNote("%s can't be made in a root that is read-only: the driver's libraries are found by LD_LIBRARY_PATH", cachePath)
		p.setLibraryPath()
		return nil
	}
	file, err := p.caches().addFile(merged)
	if errors.Is(err, errFull) || isUnwritable(err) {
		p.addNote("%s takes no other loader cache (%v): the driver's libraries are found by LD_LIBRARY_PATH", p.caches().dir, err)
		p.setLibraryPath()
		return nil
	}
	if err != nil {
		return err
	}
	p.Edits.AddMounts(whyCacheBound, readOnlyBind(p.shared.PathForContainers(file), cachePath))
	return nil
}

func (p *preparation) caches() boundFiles { return boundFilesOf(p.shared) }

// setLibraryPath sets LD_LIBRARY_PATH. It is the last resort: programs with file capabilities ignore
// the variable, and all other programs search its directories first.
func (p *preparation) setLibraryPath() {
	if p.spec.Process == nil {
		return
	}
	const name = libraryPathVariable
	var have []string
	for _, v := range p.spec.Process.Env {
		if old, ok := strings.CutPrefix(v, name+"="); ok && old != "" {
			have = strings.Split(old, ":")
		}
	}
	dirs := slices.DeleteFunc(p.libDirs(), func(dir string) bool { return slices.Contains(have, dir) })
	p.Edits.SetEnv(whyLibraryPath, name, strings.Join(append(dirs, have...), ":"))
}

// libDirs are the directories of libraries as the container sees them, in the order
// in which they are to be searched.
func (p *preparation) libDirs() []string {
	var dirs []string
	if p.newer.entries != nil {
		dirs = append(dirs, CompatDir)
	}
	dirs = append(dirs, path.Join(p.Target, driver.LibDir(64)))
	if slices.ContainsFunc(p.dir.Libraries, func(l driver.Library) bool { return l.Bits == 32 }) {
		dirs = append(dirs, path.Join(p.Target, driver.LibDir(32)))
	}
	return dirs
}

// mergeCache adds the driver's libraries to the image's loader cache and removes those of an earlier
// start. An invalid cache counts as empty, as it does for the loader.
func (p *preparation) mergeCache(old []byte) []byte {
	cache, err := ldcache.Parse(old)
	if err != nil {
		p.addNote("%s of the image is replaced: %v", cachePath, err)
		cache = ldcache.Cache{}
	}
	return cache.Without(OtherTarget).Without(p.Target).Merge(p.cacheEntries()).Bytes()
}

// cacheEntries returns the entries to add, the preferred ones first.
func (p *preparation) cacheEntries() []ldcache.Entry {
	return slices.Concat(p.newer.entries, thisMachine().driverEntries(p.dir, p.Target))
}

// machine has what the dynamic loader of an architecture looks for.
type machine struct {
	// loaders are the paths of glibc's loaders for the driver's libraries. An image without any of
	// them has no program that reads a cache.
	loaders []string
	// flags are the flags of cache entries by the libraries' word size. Libraries of other sizes
	// aren't loaded.
	flags map[int]ldcache.Flags
}

// machineOf returns the machine of an architecture in Go's notation.
func machineOf(arch string) machine {
	if arch == "arm64" {
		return machine{[]string{"lib/ld-linux-aarch64.so.1"}, map[int]ldcache.Flags{64: ldcache.AArch64}}
	}
	return machine{
		[]string{"lib64/ld-linux-x86-64.so.2", "lib/ld-linux.so.2"},
		map[int]ldcache.Flags{64: ldcache.X8664, 32: ldcache.I386},
	}
}

// thisMachine returns the machine of this process.
func thisMachine() machine { return machineOf(runtime.GOARCH) }

// driverEntries returns the entries that ldconfig would make for the driver directory at target.
func (m machine) driverEntries(dir driver.Dir, target string) []ldcache.Entry {
	var all []ldcache.Entry
	for _, l := range dir.Libraries {
		flags, ok := m.flags[l.Bits]
		if !ok {
			continue
		}
		names := l.Names
		if len(names) == 0 {
			names = []string{path.Base(l.File)} // its SONAME is its file name
		}
		for _, name := range names {
			all = append(all, ldcache.Entry{Name: name, Path: path.Join(target, path.Dir(l.File), name), Flags: flags})
		}
	}
	return all
}
