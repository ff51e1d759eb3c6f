package escape

import (
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// sharedFiles are attacks on the files that all containers have in common: a lease on one
// of them (fcntl(2), F_SETLEASE) holds up every other container that opens the file.
func sharedFiles() []attack {
	const class = "a tenant's lease on a file of the driver freezes CUDA for all"
	return []attack{
		{name: "files/lease", class: class, gained: leased, build: func(s *scene) {
			s.do("lease /usr/local/nvidia/lib64/libnvidia-ml.so.1", "lease /usr/local/nvidia/bin/nvidia-smi")
		}},
		{name: "files/lease after umount", class: class, gained: leased, build: func(s *scene) {
			s.w.Do(s.t, "sh", "-c", "! mountpoint -q /var/lib/berth/shared || umount /var/lib/berth/shared")
			s.do("lease /usr/local/nvidia/lib64/libnvidia-ml.so.1")
		}},
		{
			name: "files/lease by capability", class: class, gained: leased,
			not: map[string]string{"hook": "it works: capabilities are the runtime's, and no hook changes them (docs/security.md)"},
			build: func(s *scene) {
				for _, set := range []*[]string{
					&s.spec.Process.Capabilities.Bounding, &s.spec.Process.Capabilities.Permitted, &s.spec.Process.Capabilities.Effective,
				} {
					*set = append(append([]string{}, *set...), "CAP_LEASE")
				}
				s.do("lease /usr/local/nvidia/lib64/libnvidia-ml.so.1")
			},
		},
	}
}

// leased: a lease was taken.
func leased(s *scene) string {
	for command, answer := range s.answers {
		if strings.HasPrefix(command, "lease ") && answer == "ok" {
			return command + " holds up whoever opens the file"
		}
	}
	return ""
}

// files binds the host's copies of the driver's files, which all containers share.
func (n *naive) files() {
	dirs, err := filepath.Glob("/var/lib/berth/driver/*/all/files")
	if err != nil || len(dirs) == 0 {
		return
	}
	n.spec.Mounts = append(n.spec.Mounts, specs.Mount{
		Destination: "/usr/local/nvidia", Source: dirs[0], Type: "bind", Options: []string{"rbind", "ro"},
	})
}
