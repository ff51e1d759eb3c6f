package snapshot

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/driver"
	"github.com/berth-gpu/berth/internal/smallfile"
)

// Key is what a snapshot depends on, all of it cheap to read at every start.
type Key struct {
	BootID string `json:"boot_id"`
	// Driver is the version of the loaded kernel module.
	Driver string `json:"driver"`
	// Majors are the character majors of /proc/devices that belong to
	// accelerators, by name: "nvidia", "nvidia-uvm", "nvidia-caps", …
	Majors map[string]uint32 `json:"majors"`
	// GPUs are the names below /proc/driver/nvidia/gpus, sorted.
	GPUs []string `json:"gpus"`
	// MIG is the layout of the MIG instances: "gpu0: 1.0 2.0", one for each GPU
	// that has any, as [driver.MIG] writes it.
	MIG []string `json:"mig,omitempty"`
	// DRM says that nvidia_drm is loaded, which makes the graphics nodes.
	DRM bool `json:"nvidia_drm,omitempty"`
	// FeatureNodes are those of gdrdrv, nvidia-fs0 and nvidia-nvswitchctl that are there.
	FeatureNodes []string `json:"extras,omitempty"`
	// Channels is when the directory of the IMEX channels last changed, in
	// nanoseconds; 0 if there is none.
	Channels int64 `json:"imex_channels,omitempty"`
}

// ReadKey reads the machine's present key. A machine without the driver has one.
func ReadKey(h gpu.Host) (k Key, err error) {
	if k.BootID, err = smallfile.String(h.ProcPath("sys/kernel/random/boot_id")); err != nil {
		return Key{}, err
	}
	if k.Driver, err = driver.Version(h); err != nil {
		return Key{}, err
	}
	majors, err := gpu.ReadMajors(h)
	if err != nil {
		return Key{}, err
	}
	k.Majors = acceleratorMajors(majors)
	if k.GPUs, err = driver.Addresses(h); err != nil {
		return Key{}, err
	}
	layout, err := driver.Layout(h)
	if err != nil {
		return Key{}, err
	}
	for _, m := range layout {
		k.MIG = append(k.MIG, m.String())
	}
	k.readFeatureNodes(h)
	return k, nil
}

// acceleratorMajors keeps the first major of each name.
func acceleratorMajors(majors []gpu.Major) map[string]uint32 {
	own := map[string]uint32{}
	for _, m := range majors {
		if _, twice := own[m.Name]; !twice && gpu.IsAcceleratorMajor(m.Name) {
			own[m.Name] = m.Number
		}
	}
	return own
}

// Changes says in words what is different now. After a reboot nothing else is said.
func (k Key) Changes(now Key) []string {
	if k.BootID != now.BootID {
		return []string{"the machine was booted since"}
	}
	var changes []string
	if c := describeChange("driver", k.Driver, now.Driver); c != "" {
		changes = append(changes, c)
	}
	changes = append(changes, majorChanges(k.Majors, now.Majors)...)
	changes = append(changes, listChanges("GPU ", k.GPUs, now.GPUs)...)
	changes = append(changes, migChanges(k.MIG, now.MIG)...)
	return append(changes, k.featureNodeChanges(now)...)
}

func describeChange(what, before, now string) string {
	switch {
	case before == now:
		return ""
	case before == "":
		return what + " " + now + " is new"
	case now == "":
		return what + " " + before + " is gone"
	}
	return what + " " + before + " is now " + now
}

func majorChanges(before, now map[string]uint32) []string {
	if maps.Equal(before, now) {
		return nil
	}
	all := maps.Clone(before)
	if all == nil {
		all = map[string]uint32{}
	}
	maps.Copy(all, now)
	var changes []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if c := describeChange("major of "+name, majorText(before, name), majorText(now, name)); c != "" {
			changes = append(changes, c)
		}
	}
	return changes
}

func majorText(majors map[string]uint32, name string) string {
	if n, ok := majors[name]; ok {
		return fmt.Sprint(n)
	}
	return ""
}

func listChanges(what string, before, now []string) []string {
	var changes []string
	for _, s := range before {
		if !slices.Contains(now, s) {
			changes = append(changes, what+s+" is gone")
		}
	}
	for _, s := range now {
		if !slices.Contains(before, s) {
			changes = append(changes, what+s+" is new")
		}
	}
	return changes
}

func migChanges(before, now []string) []string {
	if slices.Equal(before, now) {
		return nil
	}
	return []string{fmt.Sprintf("MIG layout %s is now %s", migText(before), migText(now))}
}

func migText(layout []string) string {
	if len(layout) == 0 {
		return "(none)"
	}
	return "(" + strings.Join(layout, ", ") + ")"
}
