package gpu

import (
	"strconv"
	"strings"
)

// Feature is a class of devices beside the GPUs that a task asks for by a word of
// its request, in canonical text: "gds", "imex=0-3". No container has one without
// asking, and the admin's policy decides who may ask, by [Feature.Name].
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

// Name is what policy speaks of: the text without the value.
func (f Feature) Name() string {
	name, _, _ := strings.Cut(string(f), "=")
	return name
}

// Wants says whether the node is among those that the feature asks for.
func (f Feature) Wants(e Extra) bool {
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

// Extra is a device node of the host that belongs to a [Feature].
type Extra struct {
	Feature string `json:"feature"` // the feature's name
	Path    string `json:"path"`    // below /dev: "nvidia-caps-imex-channels/channel0"
	Major   int    `json:"major"`
	Minor   int    `json:"minor"`
}

// Offers lists what of the named feature can be asked for on the node: nothing, the
// feature, or each of its channels by itself.
func (inv Inventory) Offers(name string) []Feature {
	if name == FeatureFabricManager && inv.NVSwitches > 0 {
		return []Feature{FeatureFabricManager}
	}
	var all []Feature
	for _, e := range inv.Extras {
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
