package cdi

import (
	"path"
	"runtime"
	"slices"

	"github.com/berth-gpu/berth/cdi/driver"
	"github.com/berth-gpu/berth/cdi/ldcache"
)

// mergeCache adds our libraries to the image's loader cache, in place of what an
// earlier start left. What isn't a cache is none to the loader either.
func (p *preparation) mergeCache(old []byte) []byte {
	cache, err := ldcache.Parse(old)
	if err != nil {
		p.note("%s of the image is replaced: %v", cachePath, err)
		cache = ldcache.Cache{}
	}
	return cache.Without(OtherTarget).Without(p.Target).Merge(p.entries()).Bytes()
}

// entries are all that we add, what is to be found first coming first.
func (p *preparation) entries() []ldcache.Entry {
	return slices.Concat(p.newer.entries, entries(p.dir, p.Target))
}

// entries are what ldconfig would find in the driver directory at target.
func entries(dir driver.Dir, target string) []ldcache.Entry {
	var all []ldcache.Entry
	for _, l := range dir.Libraries {
		flags, ok := flagsOf(l.Bits)
		if !ok {
			continue
		}
		names := l.Names
		if len(names) == 0 {
			names = []string{path.Base(l.File)} // its SONAME is its name
		}
		for _, name := range names {
			all = append(all, ldcache.Entry{Name: name, Path: path.Join(target, path.Dir(l.File), name), Flags: flags})
		}
	}
	return all
}

func flagsOf(bits int) (ldcache.Flags, bool) {
	switch {
	case runtime.GOARCH == "arm64":
		return ldcache.AArch64, bits == 64
	case bits == 32:
		return ldcache.I386, true
	}
	return ldcache.X8664, true
}
