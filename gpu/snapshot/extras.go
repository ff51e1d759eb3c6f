package snapshot

import (
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/gpu"
)

// readExtras fills in what is cheap to see of the nodes that features stand for:
// their drivers load without making them, so they can come later than their major.
// Nothing is looked at for a driver that isn't loaded.
func (k *Key) readExtras(h gpu.Host) {
	k.DRM = unix.Access(h.SysPath("module/nvidia_drm"), unix.F_OK) == nil
	for _, first := range []struct{ driver, node string }{
		{"gdrdrv", "gdrdrv"},
		{"nvidia-fs", "nvidia-fs0"},
		{"nvidia-nvswitch", "nvidia-nvswitchctl"},
	} {
		if _, loaded := k.Majors[first.driver]; loaded && unix.Access(h.DevPath(first.node), unix.F_OK) == nil {
			k.Extras = append(k.Extras, first.node)
		}
	}
	const channels = "nvidia-caps-imex-channels"
	var st unix.Stat_t
	if _, loaded := k.Majors[channels]; loaded && unix.Stat(h.DevPath(channels), &st) == nil {
		k.Channels = st.Mtim.Nano()
	}
}

func (k Key) extraChanges(now Key) []string {
	var changes []string
	switch {
	case now.DRM && !k.DRM:
		changes = append(changes, "nvidia_drm was loaded")
	case k.DRM && !now.DRM:
		changes = append(changes, "nvidia_drm was unloaded")
	}
	changes = append(changes, listChanges("node ", k.Extras, now.Extras)...)
	if k.Channels != now.Channels {
		changes = append(changes, "IMEX channels were made or removed")
	}
	return changes
}
