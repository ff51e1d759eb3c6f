package driver

import (
	"debug/elf"
	"strings"
)

// machine has the properties of a processor architecture for which NVIDIA has a driver.
type machine struct {
	name   string // as NVIDIA's file names have it
	triple string // as Debian's directory names have it
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

// programDirs are the directories of programs; Debian keeps programs beside the libraries, behind
// links in usr/bin that lead through /etc/alternatives.
func programDirs() []string {
	return []string{"usr/bin", "usr/sbin", "bin", "sbin", "usr/local/bin", "opt/bin", "usr/lib/nvidia/current", "usr/local/nvidia/bin"}
}
