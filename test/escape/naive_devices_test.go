package escape

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// soname returns a library's soname, from its dynamic section.
func soname(elf []byte) string {
	if len(elf) < 64 || string(elf[:4]) != "\x7fELF" {
		return ""
	}
	const dynamic, name, table = 2, 14, 5 // PT_DYNAMIC, DT_SONAME, DT_STRTAB
	word := func(at uint64) uint64 { return binary.LittleEndian.Uint64(elf[at:]) }
	for i := range uint64(binary.LittleEndian.Uint16(elf[56:])) {
		header := word(32) + i*56
		if binary.LittleEndian.Uint32(elf[header:]) != dynamic {
			continue
		}
		values := map[uint64]uint64{}
		for at := word(header + 8); word(at) != 0; at += 16 {
			values[word(at)] = word(at + 8)
		}
		start := values[table] + values[name]
		end := start + uint64(bytes.IndexByte(elf[start:], 0))
		return string(elf[start:end])
	}
	return ""
}

// devices gives the container the requested devices, whatever the source of the request is.
func (n *naive) devices() {
	open := n.spec.Linux.Resources.Devices
	if len(open) > 0 && open[0].Allow { // privileged: a list of denials
		n.close()
		return
	}
	if n.ask == "" && n.spec.Annotations["cdi.k8s.io/devices"] == "" {
		return
	}
	// Every container gets the control nodes, and with them the whole major.
	major := int64(195)
	n.allow(specs.LinuxDeviceCgroup{Type: "c", Major: &major})
	n.addNodes("/dev/nvidiactl")
	n.gpus()
	if n.variable("NVIDIA_DRIVER_CAPABILITIES") == "utility" {
		n.files()
	}
	if n.runtime == "crun" { // runc makes no mounts below /proc
		n.bind("/proc/driver")
	}
	for variable, pattern := range map[string]string{
		"NVIDIA_GDS": "/dev/nvidia-fs*", "NVIDIA_GDRCOPY": "/dev/gdrdrv", "NVIDIA_NVSWITCH": "/dev/nvidia-nvswitch*",
		"NVIDIA_MOFED": "/dev/infiniband/*", "NVIDIA_IMEX_CHANNELS": "/dev/nvidia-caps-imex-channels/*",
		"NVIDIA_DRIVER_CAPABILITIES": "/dev/dri/renderD*",
	} {
		if v := n.variable(variable); v != "" && v != "disabled" {
			n.addNodes(pattern)
		}
	}
	for word, pattern := range map[string]string{
		"+gds": "/dev/nvidia-fs*", "+gdrcopy": "/dev/gdrdrv", "+nvswitch": "/dev/nvidia-nvswitch*",
		"+imex": "/dev/nvidia-caps-imex-channels/*", "vendor.example/": "/dev/infiniband/*",
	} {
		if strings.Contains(n.ask, word) || strings.Contains(n.spec.Annotations["cdi.k8s.io/devices"], word) {
			n.addNodes(pattern)
		}
	}
	if n.variable("NVIDIA_FABRICMANAGER") != "" || strings.Contains(n.ask, "+fabricmanager") {
		n.bind("/run/nvidia-fabricmanager")
	}
}

func (n *naive) bind(path string) {
	n.spec.Mounts = append(n.spec.Mounts, specs.Mount{Destination: path, Source: path, Type: "bind", Options: []string{"rbind"}})
}

// gpus are chosen by number, whether others have them or not.
func (n *naive) gpus() {
	ask := strings.TrimPrefix(n.ask, "device=")
	if strings.HasPrefix(ask, "all") {
		n.addNodes("/dev/nvidia[0-9]*")
		return
	}
	for _, word := range strings.Split(ask, ",") {
		if len(word) == 1 {
			n.addNodes("/dev/nvidia" + word)
		}
	}
}

func (n *naive) allow(r specs.LinuxDeviceCgroup) {
	r.Allow, r.Access = true, "rwm"
	n.spec.Linux.Resources.Devices = append(n.spec.Linux.Resources.Devices, r)
}

// addNodes adds the host's nodes that match a pattern.
func (n *naive) addNodes(pattern string) {
	files, err := filepath.Glob(pattern)
	if err != nil {
		return
	}
	for _, file := range files {
		var st unix.Stat_t
		if unix.Stat(file, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
			continue
		}
		major, minor := int64(unix.Major(st.Rdev)), int64(unix.Minor(st.Rdev))
		mode := os.FileMode(0o666)
		n.spec.Linux.Devices = append(n.spec.Linux.Devices, specs.LinuxDevice{Path: file, Type: "c", Major: major, Minor: minor, FileMode: &mode})
		n.allow(specs.LinuxDeviceCgroup{Type: "c", Major: &major, Minor: &minor})
	}
}

// close denies the accelerators that it knows, by their names in the spec, below "allow all".
func (n *naive) close() {
	kept := n.spec.Mounts[:0]
	for _, m := range n.spec.Mounts {
		if !strings.HasPrefix(m.Source, "/dev/nvidia") {
			kept = append(kept, m)
		}
	}
	n.spec.Mounts = kept
}
