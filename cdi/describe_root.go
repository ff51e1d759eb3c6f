package cdi

import (
	"path"
	"strings"

	"github.com/berth-gpu/berth/cdi/driver"
	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
)

const (
	libraryPathVariable = "LD_LIBRARY_PATH"

	whyLibraryPath = "the driver's libraries are found by it where the loader's cache is out of reach"
	whyCacheBound  = "the loader finds the driver's libraries by it; the root can't be written to"
	whyCache       = "the loader finds the driver's libraries by it; the image's own entries are kept"
	whyLoaderLine  = "a later ldconfig in the container finds the driver's libraries by it"
)

// DescribeRoot returns what [PrepareRoot] brings into a container that has the driver directory at
// target and this environment, with the reasons of each file. It lists every way in which the
// loader can learn of the libraries; which of them was chosen shows in the container's spec and
// root. It is pure.
func DescribeRoot(target string, env []string, dir driver.Dir, caps gpu.Capabilities, with RootOptions) edits.Edits {
	e := Files(dir, target, with.Shared)
	e.Mounts = append(e.Mounts, with.Mounts...)
	why := func(file string) string { return DescribeCapabilities(dir.ChosenBy(file) & caps) }
	for _, name := range dir.Programs {
		e.AddReason("program", path.Join(target, "bin", name), why("bin/"+name))
		if isInUsrBin(name) {
			e.AddReason("mount", path.Join("/usr/bin", name), why("bin/"+name)+", where people look for it")
		}
	}
	for _, l := range dir.Libraries {
		e.AddReason("library", path.Join(target, l.File), why(l.File))
	}
	for _, f := range dir.Extras {
		asked := why(f.Destination)
		if strings.Contains(f.Destination, "/firmware/") {
			asked = "the GPUs' own processors load it; " + asked
		}
		e.AddReason("mount", f.Destination, asked)
	}
	e.AddReason("mount", cachePath, whyCacheBound)
	e.AddReason("file", LoaderLine, whyLoaderLine)
	e.AddReason("file", cachePath, whyCache)
	for _, entry := range env {
		name, value, _ := strings.Cut(entry, "=")
		if name == libraryPathVariable && strings.HasPrefix(strings.TrimPrefix(value, CompatDir+":"), path.Join(target, driver.LibDir(64))) {
			e.SetEnv(whyLibraryPath, name, value)
		}
	}
	return e
}
