package cdi

import (
	"debug/elf"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/cdi/ldcache"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/inroot"
)

// CompatDir is the directory of images with libraries of a newer driver (CUDA forward
// compatibility).
const CompatDir = "/usr/local/cuda/compat"

const (
	// compatNames bounds how many names in CompatDir are looked at, compatFiles how
	// many libraries are opened; NVIDIA's packages have about ten.
	compatNames = 256
	compatFiles = 32
	// compatSwitch is the environment variable that turns forward compatibility off, as in NVIDIA's
	// images.
	compatSwitch = "NVIDIA_DISABLE_FORWARD_COMPATIBILITY"
)

// AllowsCompat reports whether a container may use the libraries of a newer driver in its image: it
// has the capability compute, and all leased devices are data-center GPUs. NVIDIA's driver supports
// no others.
func AllowsCompat(leased []gpu.Device, selection Selection) bool {
	return selection.Capabilities.Has(gpu.Compute) && len(leased) > 0 &&
		!slices.ContainsFunc(leased, func(d gpu.Device) bool { return !isDataCenter(d.Model) })
}

// isDataCenter reports whether a model is a data-center GPU: its name has none of the consumer
// and workstation families, or it has "Server Edition". An empty model isn't one.
func isDataCenter(model string) bool {
	if strings.Contains(model, "Server Edition") {
		return true
	}
	return model != "" && !slices.ContainsFunc([]string{"GeForce", "TITAN", "Quadro", "NVS", "RTX"}, func(family string) bool {
		return strings.Contains(model, family)
	})
}

// compat has the libraries of a newer driver in the image; the zero compat has none.
type compat struct{ entries []ldcache.Entry }

// findCompat looks for libraries of a newer driver in the image. They are used if their major
// version is newer than that of the driver, as NVIDIA's own tools do; invalid ones are noted and not
// used. They are only added to the container's loader cache, so a hostile library gains nothing: the
// image could load it anyway.
func (p *preparation) findCompat() compat {
	if !p.compatible || compatDisabled(p.spec) || p.isHidden(CompatDir) {
		return compat{}
	}
	dir, err := inroot.OpenDir(p.root, CompatDir)
	if err != nil {
		return compat{} // most images have none
	}
	defer dir.Close() // only read from
	names, err := dir.Readdirnames(compatNames + 1)
	if err != nil || len(names) > compatNames {
		p.addNote("%s isn't used: it can't be listed, or is too large", CompatDir)
		return compat{}
	}
	version, ok := newestVersion(names)
	if !ok || !isNewerMajor(version, p.dir.Driver) {
		return compat{}
	}
	entries, err := compatEntries(dir, names, version)
	if err != nil {
		p.addNote("%s isn't used: %v", CompatDir, err)
		return compat{}
	}
	p.addNote("the image's libraries of driver %s in %s come before those of %s", version, CompatDir, p.dir.Driver)
	return compat{entries: entries}
}

// compatDisabled reports whether the container's environment turns forward compatibility off.
func compatDisabled(spec *specs.Spec) bool {
	if spec.Process == nil {
		return false
	}
	off := false
	for _, v := range spec.Process.Env {
		if value, ok := strings.CutPrefix(v, compatSwitch+"="); ok {
			off = !slices.Contains([]string{"", "0", "false", "False", "FALSE"}, value)
		}
	}
	return off
}

// newestVersion returns the newest version in the file names of libcuda.
func newestVersion(names []string) (version string, ok bool) {
	var best []int
	for _, name := range names {
		v, is := strings.CutPrefix(name, "libcuda.so.")
		parts, valid := parseVersion(v)
		if is && valid && slices.Compare(parts, best) > 0 {
			version, best = v, parts
		}
	}
	return version, best != nil
}

// isNewerMajor reports whether the image's libraries have a newer major version than the host's
// driver. With the same major version the driver's own libraries are used.
func isNewerMajor(image, host string) bool {
	a, ok := parseVersion(image)
	b, known := parseVersion(host)
	return ok && known && a[0] > b[0]
}

// parseVersion reads the version of a driver: "550.163.01".
func parseVersion(s string) (parts []int, ok bool) {
	words := strings.Split(s, ".")
	if len(words) < 2 || len(words) > 4 {
		return nil, false
	}
	for _, w := range words {
		n, err := strconv.ParseUint(w, 10, 20)
		if err != nil || len(w) > 6 {
			return nil, false
		}
		parts = append(parts, int(n))
	}
	return parts, true
}

// compatEntries of the libraries of a version; libcuda.so.1 must be among them.
func compatEntries(dir *os.File, names []string, version string) ([]ldcache.Entry, error) {
	files := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return !strings.HasPrefix(name, "lib") || !strings.HasSuffix(name, ".so."+version)
	})
	if len(files) > compatFiles {
		return nil, fmt.Errorf("%d libraries of version %s", len(files), version)
	}
	slices.Sort(files)
	var all []ldcache.Entry
	for _, file := range files {
		entries, err := compatLibrary(dir, file)
		if err != nil {
			return nil, err
		}
		all = append(all, entries...)
	}
	if !slices.ContainsFunc(all, func(e ldcache.Entry) bool { return e.Name == "libcuda.so.1" }) {
		return nil, fmt.Errorf("libcuda.so.%s isn't libcuda.so.1", version)
	}
	return all, nil
}

// compatLibrary returns the cache entries of one file: by its SONAME, and the name without a number
// that some programs open.
func compatLibrary(dir *os.File, file string) ([]ldcache.Entry, error) {
	f, err := inroot.OpenFile(dir, file)
	if err != nil {
		return nil, err
	}
	defer f.Close() // only read from
	l, err := ldcache.ReadLibrary(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	flags, ok := l.Flags()
	own := thisMachine().flags[64]
	if !ok || flags != own || l.Class != elf.ELFCLASS64 {
		return nil, fmt.Errorf("%s is a library of another machine", file)
	}
	stem, _, _ := strings.Cut(file, ".so.")
	if strings.Contains(l.SONAME, "/") || l.SONAME != file && !strings.HasPrefix(l.SONAME, stem+".so.") {
		return nil, fmt.Errorf("%s calls itself %q", file, l.SONAME)
	}
	all := []ldcache.Entry{{Name: l.SONAME, Path: path.Join(CompatDir, file), Flags: flags}}
	if l.SONAME != file {
		all = append(all, ldcache.Entry{Name: stem + ".so", Path: path.Join(CompatDir, file), Flags: flags})
	}
	return all, nil
}
