package snapshot

import (
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/gpu"
)

// readFeatureNodes fills in which feature nodes exist. It is needed because nodes can appear later
// than their driver's major. Nodes of drivers that aren't loaded are not looked up.
func (k *Key) readFeatureNodes(h gpu.Host) {
	k.DRM = unix.Access(h.SysPath("module/nvidia_drm"), unix.F_OK) == nil
	for _, first := range []struct{ driver, node string }{
		{"gdrdrv", "gdrdrv"},
		{"nvidia-fs", "nvidia-fs0"},
		{"nvidia-nvswitch", "nvidia-nvswitchctl"},
	} {
		if _, loaded := k.Majors[first.driver]; loaded && unix.Access(h.DevPath(first.node), unix.F_OK) == nil {
			k.FeatureNodes = append(k.FeatureNodes, first.node)
		}
	}
	const channels = "nvidia-caps-imex-channels"
	var st unix.Stat_t
	if _, loaded := k.Majors[channels]; loaded && unix.Stat(h.DevPath(channels), &st) == nil {
		k.Channels = st.Mtim.Nano()
	}
}

func (k Key) featureNodeChanges(now Key) []string {
	var changes []string
	switch {
	case now.DRM && !k.DRM:
		changes = append(changes, "nvidia_drm was loaded")
	case k.DRM && !now.DRM:
		changes = append(changes, "nvidia_drm was unloaded")
	}
	changes = append(changes, listChanges("node ", k.FeatureNodes, now.FeatureNodes)...)
	if k.Channels != now.Channels {
		changes = append(changes, "IMEX channels were made or removed")
	}
	return changes
}
