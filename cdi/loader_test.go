package cdi

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/cdi/driver"
	"github.com/berth-gpu/berth/cdi/ldcache"
)

// The entries that a loader finds, also for machines on which these tests don't run. The numbers
// are glibc's (ldconfig.h: FLAG_ELF_LIBC6 with FLAG_X8664_LIB64, FLAG_AARCH64_LIB64), the paths
// those of the processors' ABIs.
func TestMachines(t *testing.T) {
	dir := driver.Dir{Manifest: driver.Manifest{Libraries: []driver.Library{
		{File: "lib64/libcuda.so.550.1", Names: []string{"libcuda.so.1"}, Bits: 64},
		{File: "lib/libcuda.so.550.1", Names: []string{"libcuda.so.1"}, Bits: 32},
	}}}
	wide := ldcache.Entry{Name: "libcuda.so.1", Path: "/usr/local/nvidia/lib64/libcuda.so.1"}
	narrow := ldcache.Entry{Name: "libcuda.so.1", Path: "/usr/local/nvidia/lib/libcuda.so.1", Flags: 0x3}
	for _, tt := range []struct {
		arch    string
		loaders []string
		flags   ldcache.Flags
		narrow  []ldcache.Entry
	}{
		{"amd64", []string{"lib64/ld-linux-x86-64.so.2", "lib/ld-linux.so.2"}, 0x303, []ldcache.Entry{narrow}},
		{"arm64", []string{"lib/ld-linux-aarch64.so.1"}, 0xa03, nil},
	} {
		t.Run(tt.arch, func(t *testing.T) {
			m := machineOf(tt.arch)
			if d := cmp.Diff(tt.loaders, m.loaders); d != "" {
				t.Errorf("loaders (-want +got):\n%s", d)
			}
			entry := wide
			entry.Flags = tt.flags
			if d := cmp.Diff(append([]ldcache.Entry{entry}, tt.narrow...), m.driverEntries(dir, Target)); d != "" {
				t.Errorf("entries (-want +got):\n%s", d)
			}
			// The entries survive writing and parsing the cache.
			cache, err := ldcache.Parse(ldcache.Cache{}.Merge(m.driverEntries(dir, Target)).Bytes())
			if err != nil || len(cache.Entries) != 1+len(tt.narrow) || cache.Entries[0].Flags != tt.flags {
				t.Errorf("%+v, %v", cache, err)
			}
		})
	}
}
