package cdi

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
)

// Selection has the driver capabilities and features that a container gets beside its devices. The
// caller has checked it against the admin's policy. This package adds nothing that isn't in it.
type Selection struct {
	// Capabilities choose libraries, programs and nodes.
	Capabilities gpu.Capabilities
	// Features are further classes of devices.
	Features []gpu.Feature
}

// addFeatureNodes adds the host's nodes of the features. A feature, or an IMEX channel,
// that the node lacks is an error.
func addFeatureNodes(e *edits.Edits, inv gpu.Inventory, features []gpu.Feature) error {
	for _, f := range features {
		nodes := nodesOf(inv, f)
		missing, err := findMissing(f, nodes)
		if err != nil {
			return err
		}
		if missing != "" {
			return fmt.Errorf("feature %s: this node has no %s", f, missing)
		}
		e.AddNodes("feature "+string(f), nodes...)
	}
	return nil
}

func nodesOf(inv gpu.Inventory, f gpu.Feature) []edits.Node {
	var nodes []edits.Node
	for _, x := range inv.FeatureNodes {
		if f.Includes(x) {
			nodes = append(nodes, deviceNode(x.Path, int64(x.Major), x.Minor))
		}
	}
	return nodes
}

// findMissing names the first thing that a feature needs and that isn't among the nodes.
func findMissing(f gpu.Feature, nodes []edits.Node) (string, error) {
	switch f.Name() {
	case gpu.FeatureFabricManager: // the fabric manager has a socket and no node
		return "", nil
	case gpu.FeatureIMEX:
		first, last, ok := channelRange(f)
		if !ok {
			return "", fmt.Errorf("feature %s: it names no channels", f)
		}
		for n := first; n <= last; n++ {
			if !slices.ContainsFunc(nodes, func(e edits.Node) bool { return e.Minor == int64(n) }) {
				return fmt.Sprintf("/dev/nvidia-caps-imex-channels/channel%d", n), nil
			}
		}
		return "", nil
	}
	patterns := map[string]string{
		gpu.FeatureGDS: "/dev/nvidia-fs*", gpu.FeatureGDRCopy: "/dev/gdrdrv", gpu.FeatureNVSwitch: "/dev/nvidia-nvswitch*",
	}
	pattern, known := patterns[f.Name()]
	if !known {
		return "", fmt.Errorf("feature %s: unknown", f)
	}
	if len(nodes) == 0 {
		return pattern, nil
	}
	return "", nil
}

// channelRange returns the numbers in imex=FIRST-LAST or imex=N.
func channelRange(f gpu.Feature) (first, last int, ok bool) {
	_, value, _ := strings.Cut(string(f), "=")
	from, to, ranged := strings.Cut(value, "-")
	if !ranged {
		to = from
	}
	first, err := strconv.Atoi(from)
	if err != nil {
		return 0, 0, false
	}
	last, err = strconv.Atoi(to)
	return first, last, err == nil && 0 <= first && first <= last
}

// Sockets and files of services beside the driver, as they are called on the host
// and in containers.
const (
	fabricManagerSocket = "/run/nvidia-fabricmanager/socket"
	udevState           = "/run/udev"
	cufileConfig        = "/etc/cufile.json"
)

// Services returns the bind mounts of the host services' sockets and files of the selected features.
// A missing socket of a feature is an error. Each is looked for below the driver's root, then below /.
//
// The socket of nvidia-persistenced stays outside. Its process has every GPU open, and a container with
// CAP_SYS_ADMIN and CAP_SYS_PTRACE could get a pidfd of it (SO_PEERPIDFD). The persistence mode is the admin's to change.
func Services(h gpu.Host, selection Selection) (edits.Edits, error) {
	var e edits.Edits
	add := func(why, name string, kind uint32) bool {
		source, ok := onHost(h, name, kind)
		if ok {
			e.AddMounts(why, bindView(source, name))
		}
		return ok
	}
	for _, f := range selection.Features {
		why := "feature " + string(f)
		switch f.Name() {
		case gpu.FeatureFabricManager:
			if !add(why, fabricManagerSocket, unix.S_IFSOCK) {
				return edits.Edits{}, fmt.Errorf("feature %s: this node has no %s: the fabric manager doesn't run", f, fabricManagerSocket)
			}
		case gpu.FeatureGDS:
			add(why, udevState, unix.S_IFDIR)
			add(why, cufileConfig, unix.S_IFREG)
		}
	}
	return e, nil
}

func onHost(h gpu.Host, name string, kind uint32) (string, bool) {
	for _, file := range []string{h.Driver(name), path.Clean(name)} {
		if isKind(file, kind) {
			return file, true
		}
	}
	return "", false
}

// isKind reports whether a file of the host has this type. It follows links, and never opens the
// file.
func isKind(file string, kind uint32) bool {
	var st unix.Stat_t
	return unix.Stat(file, &st) == nil && st.Mode&unix.S_IFMT == kind
}
