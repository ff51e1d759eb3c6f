package cdi

import (
	"path"
	"runtime"

	"github.com/berth-gpu/berth/cdi/driver"
	"github.com/berth-gpu/berth/cdi/ldcache"
)

// machine is what the dynamic loader of a kind of processor asks for.
type machine struct {
	// loaders are those of glibc for the libraries that we bring: an image without
	// one has nothing that reads a cache.
	loaders []string
	// flags of entries of the cache by the libraries' word size; what isn't there
	// isn't loaded.
	flags map[int]ldcache.Flags
}

// machineOf an architecture, as Go calls it.
func machineOf(arch string) machine {
	if arch == "arm64" {
		return machine{[]string{"lib/ld-linux-aarch64.so.1"}, map[int]ldcache.Flags{64: ldcache.AArch64}}
	}
	return machine{
		[]string{"lib64/ld-linux-x86-64.so.2", "lib/ld-linux.so.2"},
		map[int]ldcache.Flags{64: ldcache.X8664, 32: ldcache.I386},
	}
}

// thisMachine is the machine that this is.
func thisMachine() machine { return machineOf(runtime.GOARCH) }

// driverEntries are what ldconfig would find in the driver directory at target.
func (m machine) driverEntries(dir driver.Dir, target string) []ldcache.Entry {
	var all []ldcache.Entry
	for _, l := range dir.Libraries {
		flags, ok := m.flags[l.Bits]
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
