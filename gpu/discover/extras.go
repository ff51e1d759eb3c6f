package discover

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/driver"
	"github.com/berth-gpu/berth/internal/smallfile"
)

// maxExtras is more nodes than the drivers of all features together make.
const maxExtras = 4096

// channels is where IMEX channels are, below the device tree.
const channels = "nvidia-caps-imex-channels"

// listExtras lists the nodes of the host that features stand for. A node counts only
// if it has the major of the feature's driver, so that something else under such
// a name is never handed to a container.
func listExtras(h gpu.Host) ([]gpu.Extra, error) {
	paths, err := extraPaths(h)
	if err != nil || paths == nil {
		return nil, err
	}
	majors, err := driver.Majors(h)
	if err != nil {
		return nil, err
	}
	var all []gpu.Extra
	for _, path := range paths {
		e, ok, err := readExtra(h, path, majors)
		if err != nil {
			return nil, err
		}
		if ok {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b gpu.Extra) int {
		return cmp.Or(cmp.Compare(a.Feature, b.Feature), cmp.Compare(a.Major, b.Major),
			cmp.Compare(a.Minor, b.Minor), cmp.Compare(a.Path, b.Path))
	})
	return all, nil
}

// extraPaths lists what has the name of such a node, below the device tree.
func extraPaths(h gpu.Host) ([]string, error) {
	var paths []string
	for _, dir := range []string{"", channels + "/"} {
		names, err := smallfile.Names(h.DevPath(dir))
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			if feature, _ := featureOf(dir + name); feature != "" {
				paths = append(paths, dir+name)
			}
		}
	}
	if len(paths) > maxExtras {
		return nil, fmt.Errorf("list %s: more than %d nodes of features", h.DevPath(), maxExtras)
	}
	return paths, nil
}

// readExtra looks at one entry of the device tree. Links aren't followed.
func readExtra(h gpu.Host, path string, majors []gpu.Major) (e gpu.Extra, ok bool, err error) {
	feature, driverName := featureOf(path)
	var st unix.Stat_t
	err = unix.Lstat(h.DevPath(path), &st)
	if errors.Is(err, fs.ErrNotExist) {
		return e, false, nil
	}
	if err != nil {
		return e, false, fmt.Errorf("stat %s: %w", h.DevPath(path), err)
	}
	e = gpu.Extra{Feature: feature, Path: path, Major: int(unix.Major(st.Rdev)), Minor: int(unix.Minor(st.Rdev))}
	own := slices.ContainsFunc(majors, func(m gpu.Major) bool {
		return m.Name == driverName && int64(m.Number) == int64(e.Major)
	})
	return e, own && st.Mode&unix.S_IFMT == unix.S_IFCHR && isChannel(e), nil
}

// isChannel holds for all but IMEX channels whose number isn't that of their name:
// requests name channels, and the driver looks at the number.
func isChannel(e gpu.Extra) bool {
	return e.Feature != gpu.FeatureIMEX || e.Path == channels+"/channel"+strconv.Itoa(e.Minor)
}

// featureOf says by its path below /dev which feature a node is of, and the name
// in /proc/devices that its major must have.
func featureOf(path string) (feature, driverName string) {
	switch {
	case path == "gdrdrv":
		return gpu.FeatureGDRCopy, "gdrdrv"
	case path == "nvidia-nvswitchctl", isNumbered(path, "nvidia-nvswitch"):
		return gpu.FeatureNVSwitch, "nvidia-nvswitch"
	case isNumbered(path, "nvidia-fs"):
		return gpu.FeatureGDS, "nvidia-fs"
	case isNumbered(path, channels+"/channel"):
		return gpu.FeatureIMEX, channels
	}
	return "", ""
}

func isNumbered(path, prefix string) bool {
	digits, ok := strings.CutPrefix(path, prefix)
	return ok && digits != "" && len(digits) < 8 && strings.Trim(digits, "0123456789") == ""
}
