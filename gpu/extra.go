package gpu

import "strconv"

// DRINode is one node of a GPU in the kernel's graphics interface, below /dev/dri.
// Its major is that of "drm" in /proc/devices.
type DRINode struct {
	Name  string `json:"name"` // "card1", "renderD129"
	Minor int    `json:"minor"`
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
