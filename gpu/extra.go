package gpu

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
