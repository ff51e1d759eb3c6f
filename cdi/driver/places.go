package driver

import (
	"debug/elf"
	"strings"
)

// machine has the properties of a processor architecture for which NVIDIA has a driver.
type machine struct {
	name   string // as in file names
	triple string // as in Debian's directories
	// bits are the word sizes of the libraries that its programs can load.
	bits map[elf.Machine]int
}

// machineOf is the machine with this name in Go.
func machineOf(goarch string) machine {
	if goarch == "arm64" {
		return machine{"aarch64", "aarch64-linux-gnu", map[elf.Machine]int{elf.EM_AARCH64: 64, elf.EM_ARM: 32}}
	}
	return machine{"x86_64", "x86_64-linux-gnu", map[elf.Machine]int{elf.EM_X86_64: 64, elf.EM_386: 32}}
}

// expandPaths replaces VERSION, MACHINE and TRIPLE in the table's paths.
func (m machine) expandPaths(version string, paths []string) []string {
	r := strings.NewReplacer("VERSION", version, "MACHINE", m.name, "TRIPLE", m.triple)
	all := make([]string, len(paths))
	for i, p := range paths {
		all[i] = r.Replace(p)
	}
	return all
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
