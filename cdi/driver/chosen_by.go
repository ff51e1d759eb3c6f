package driver

import (
	"path"
	"runtime"

	"github.com/berth-gpu/berth/gpu"
)

// ChosenBy returns the capabilities of which one brings a file into a container: a library
// or a program by its path in the view, or an extra by its place in the container. Those
// of 32 bits need [gpu.Compat32] as well.
func (m Manifest) ChosenBy(file string) gpu.Capabilities {
	f := newFinder(nil, m.Driver, runtime.GOARCH)
	switch dir, name := path.Split(file); dir {
	case "bin/":
		for _, p := range programTable() {
			if p.name == name {
				return p.caps
			}
		}
	case LibDir(64) + "/", LibDir(32) + "/":
		row, _ := f.findRow(name)
		if dir == LibDir(32)+"/" {
			row.caps |= gpu.Compat32
		}
		return row.caps
	}
	for _, row := range extraTable() {
		for _, name := range f.machine.expandPaths(m.Driver, row.names) {
			for _, to := range destinationPaths(f.machine.expandPaths(m.Driver, row.to), name) {
				if ok, err := path.Match(to, file); ok && err == nil {
					return row.caps
				}
			}
		}
	}
	return 0
}
