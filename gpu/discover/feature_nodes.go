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
	"github.com/berth-gpu/berth/internal/smallfile"
)

// maxFeatureNodes is far above the number of nodes that the drivers of all features make.
const maxFeatureNodes = 4096

// channels is the directory of the IMEX channels, below the device tree.
const channels = "nvidia-caps-imex-channels"

// listFeatureNodes lists the host's device nodes of all features. A node counts only if it has the
// major of the feature's driver, so that another device of the same name is never given to a
// container.
func listFeatureNodes(h gpu.Host) ([]gpu.FeatureNode, error) {
	paths, err := listFeaturePaths(h)
	if err != nil || paths == nil {
		return nil, err
	}
	majors, err := gpu.ReadMajors(h)
	if err != nil {
		return nil, err
	}
	var all []gpu.FeatureNode
	for _, path := range paths {
		e, ok, err := readFeatureNode(h, path, majors)
		if err != nil {
			return nil, err
		}
		if ok {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b gpu.FeatureNode) int {
		return cmp.Or(cmp.Compare(a.Feature, b.Feature), cmp.Compare(a.Major, b.Major),
			cmp.Compare(a.Minor, b.Minor), cmp.Compare(a.Path, b.Path))
	})
	return all, nil
}

// listFeaturePaths lists the paths below the device tree that have the name of a feature's node.
func listFeaturePaths(h gpu.Host) ([]string, error) {
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
	if len(paths) > maxFeatureNodes {
		return nil, fmt.Errorf("list %s: more than %d nodes of features", h.DevPath(), maxFeatureNodes)
	}
	return paths, nil
}

// readFeatureNode reads one entry of the device tree. Links aren't followed.
func readFeatureNode(h gpu.Host, path string, majors []gpu.Major) (e gpu.FeatureNode, ok bool, err error) {
	feature, driverName := featureOf(path)
	var st unix.Stat_t
	err = unix.Lstat(h.DevPath(path), &st)
	if errors.Is(err, fs.ErrNotExist) {
		return e, false, nil
	}
	if err != nil {
		return e, false, fmt.Errorf("stat %s: %w", h.DevPath(path), err)
	}
	e = gpu.FeatureNode{Feature: feature, Path: path, Major: int(unix.Major(st.Rdev)), Minor: int(unix.Minor(st.Rdev))}
	own := slices.ContainsFunc(majors, func(m gpu.Major) bool {
		return m.Name == driverName && int64(m.Number) == int64(e.Major)
	})
	return e, own && st.Mode&unix.S_IFMT == unix.S_IFCHR && hasChannelNumber(e), nil
}

// hasChannelNumber reports whether the minor of an IMEX channel equals the number in its name; it is
// true for other nodes. Requests name channels, but the driver uses the minor.
func hasChannelNumber(e gpu.FeatureNode) bool {
	return e.Feature != gpu.FeatureIMEX || e.Path == channels+"/channel"+strconv.Itoa(e.Minor)
}

// featureOf returns the feature to which the node at a path below /dev belongs, and the name that
// its major must have in /proc/devices.
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
