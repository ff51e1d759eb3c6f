package gpu

import (
	"strconv"
	"strings"
)

// Feature is a class of devices beside the GPUs, as a word of a request in canonical form: "gds",
// "imex=0-3". A container gets one only on request, and only if the admin's policy allows its
// [Feature.Name].
type Feature string

// The names of the features.
const (
	FeatureGDS           = "gds"           // GPUDirect Storage: nvidia-fs*
	FeatureGDRCopy       = "gdrcopy"       // gdrdrv
	FeatureNVSwitch      = "nvswitch"      // nvidia-nvswitch*, nvidia-nvswitchctl
	FeatureFabricManager = "fabricmanager" // the fabric manager's socket
	FeatureIMEX          = "imex"          // IMEX channels, by number: imex=0, imex=0-3
)

// FeatureNames lists the known names in the order of the text.
func FeatureNames() []string {
	return []string{FeatureFabricManager, FeatureGDRCopy, FeatureGDS, FeatureIMEX, FeatureNVSwitch}
}

// Name returns the feature without its value, as it is written in the policy.
func (f Feature) Name() string {
	name, _, _ := strings.Cut(string(f), "=")
	return name
}

// Includes reports whether the node belongs to the feature.
func (f Feature) Includes(e FeatureNode) bool {
	name := f.Name()
	switch {
	case name != e.Feature || name == "":
		return false
	case name != FeatureIMEX:
		return true
	}
	first, last, ok := f.Channels()
	return ok && first <= e.Minor && e.Minor <= last
}

// Channels returns the IMEX channels of imex=FIRST-LAST or imex=N. ok is false for any
// other feature.
func (f Feature) Channels() (first, last int, ok bool) {
	name, value, _ := strings.Cut(string(f), "=")
	from, to, ranged := strings.Cut(value, "-")
	if !ranged {
		to = from
	}
	a, errA := strconv.ParseUint(from, 10, 16)
	b, errB := strconv.ParseUint(to, 10, 16)
	return int(a), int(b), name == FeatureIMEX && errA == nil && errB == nil && a <= b
}

// FeatureNode is a device node of the host that belongs to a [Feature].
type FeatureNode struct {
	Feature string `json:"feature"` // the feature's name
	Path    string `json:"path"`    // below /dev: "nvidia-caps-imex-channels/channel0"
	Major   int    `json:"major"`
	Minor   int    `json:"minor"`
}

// Offers lists the features of this name that the node has: none, one, or for imex one for each
// channel.
func (inv Inventory) Offers(name string) []Feature {
	if name == FeatureFabricManager && inv.NVSwitches > 0 {
		return []Feature{FeatureFabricManager}
	}
	var all []Feature
	for _, e := range inv.FeatureNodes {
		switch {
		case e.Feature != name:
		case name != FeatureIMEX:
			return []Feature{Feature(name)}
		default:
			all = append(all, Feature(FeatureIMEX+"="+strconv.Itoa(e.Minor)))
		}
	}
	return all
}
