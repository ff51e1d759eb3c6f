package escape

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const linked = "CVE-2024-0133, CVE-2024-0134, CVE-2025-23267: a link of the image led a write out of its root"

// place is a path in an image that an injector makes or writes.
type place struct {
	name string
	file string // the host's file to which a link at the place leads
	// bare: the image's own directory is used, without a file system of the engine's on it.
	bare bool
	// graphics: only containers with graphics have something there.
	graphics bool
	// feature is the feature that brings something there.
	feature string
	// mounted: the runtimes themselves mount something there, and follow links: runc 1.1.5 and crun
	// 1.8.1 make the contents of /dev where a link at that place leads.
	mounted bool
}

// places returns all paths that berth touches in an image, and their parents.
func places() []place {
	return []place{
		{name: "usr", file: "etc"},
		{name: "usr/local", file: "etc"},
		{name: "usr/local/nvidia", file: "etc"},
		{name: "usr/local/nvidia/lib64", file: "etc"},
		{name: "usr/local/berth", file: "etc"},
		{name: "usr/bin", file: "etc"},
		{name: "usr/bin/nvidia-smi", file: "etc/new"},
		{name: "usr/share", file: "etc", graphics: true},
		{name: "lib/firmware", file: "etc", graphics: true},
		{name: "etc", file: "etc"},
		{name: "etc/ld.so.cache", file: "etc/ld.so.cache"},
		{name: "etc/ld.so.conf", file: "etc/ld.so.conf"},
		{name: "etc/ld.so.conf.d", file: "etc/ld.so.conf.d"},
		{name: "etc/ld.so.conf.d/00-berth.conf", file: "etc/keep"},
		{name: "etc/OpenCL", file: "etc", graphics: true},
		{name: "dev", file: "etc", mounted: true},
		{name: "dev/dri", file: "etc", bare: true, graphics: true},
		{name: "dev/nvidia0", file: "etc/new", bare: true},
		{name: "run", file: "etc"},
		{name: "run/nvidia-fabricmanager", file: "etc", feature: "fabricmanager"},
		{name: "proc", file: "etc", mounted: true},
		{name: "proc/driver", file: "etc", bare: true},
	}
}

// linkAttacks are attacks by symbolic links: absolute ones, and relative ones with "..", with the same
// directory in the image, so that an injector that stays inside finds something there.
func linkAttacks() []attack {
	var all []attack
	for _, p := range places() {
		all = append(all,
			attack{name: "link/" + p.name + "/absolute", class: linked, gained: hostFileWasLost, not: p.impossibleEngines("absolute"), build: func(s *scene) {
				p.prepare(s)
				s.link(p.name, filepath.Join(s.outside, p.file))
				p.withoutRuntime(s)
			}},
			attack{name: "link/" + p.name + "/climbing", class: linked, gained: hostFileWasLost, not: p.impossibleEngines("climbing"), build: func(s *scene) {
				p.prepare(s)
				s.makeHostDirectory(p.file)
				s.link(p.name, strings.Repeat("../", 40)+filepath.Join(s.outside, p.file))
				p.withoutRuntime(s)
			}},
		)
	}
	return append(all, attack{
		name: "link/SONAME", class: "CVE-2024-0134: a library's name for itself was made part of a path", gained: fileWasChanged,
		build: func(s *scene) {
			s.clear("usr/local/cuda/compat")
			s.runCommand(os.Mkdir(s.in("usr/local/cuda/compat"), 0o755))
			s.runCommand(os.Mkdir(s.in("usr/local/nvidia"), 0o755))
			s.runCommand(os.Mkdir(s.in("usr/local/nvidia/lib64"), 0o755))
			climbing := strings.Repeat("../", 40) + filepath.Join(s.outside, "etc/linked")
			s.library("usr/local/cuda/compat/libcuda.so.999.1", climbing)
		},
	})
}

// hostFileWasLost returns a gain if a file of the host was changed, now or in an earlier round.
func hostFileWasLost(s *scene) string { return s.won + fileWasChanged(s) }

// prepare makes the injector use the image's own directories, and bring the place's files.
func (p place) prepare(s *scene) {
	if p.graphics {
		s.env("NVIDIA_DRIVER_CAPABILITIES=all")
	}
	if p.feature != "" {
		s.policy = fmt.Sprintf("[policy]\nfeatures = [%q]\n", p.feature)
		s.request += ",+" + p.feature
	}
	if strings.HasPrefix(p.name, "usr/local/berth") { // which is used if the first one isn't free
		s.write(s.in("usr/local/nvidia/own"), "the image's")
	}
	if !p.bare {
		return
	}
	kept := s.spec.Mounts[:0]
	for _, m := range s.spec.Mounts {
		if !strings.HasPrefix(p.name+"/", strings.TrimPrefix(m.Destination, "/")+"/") {
			kept = append(kept, m)
		}
	}
	s.spec.Mounts = kept
}

// withoutRuntime runs only the injector where an old runtime would itself fall for the attack. Engines
// always start their runtime: see impossibleEngines.
func (p place) withoutRuntime(s *scene) {
	if !p.mounted || s.w.engine != nil {
		return
	}
	s.play = func() {
		s.putRequest()
		s.store()
		if s.entryPoint == "naive" {
			s.naively = []string{"--only-prepare"}
			s.runOnce()
			return
		}
		s.prepared(1)
	}
}

// impossibleEngines returns the engines under which the place can't be a link.
func (p place) impossibleEngines(kind string) map[string]string {
	switch {
	case p.name == "etc" && kind == "absolute":
		return map[string]string{"docker": ownDirectory, "podman": "it refuses an image whose /etc leads nowhere"}
	case p.name == "dev":
		return map[string]string{"docker": ownDirectory, "old engine": "runc 1.1.5 and crun 1.8.1 follow the link themselves, with or without berth"}
	case p.name == "etc" || p.name == "proc":
		return map[string]string{"docker": ownDirectory}
	}
	return nil
}

const ownDirectory = "it makes a directory of its own of a link there"

// makeHostDirectory makes the host's directory of the file in the image, at the same path.
func (s *scene) makeHostDirectory(file string) {
	path := s.in(filepath.Join(s.outside, file))
	if filepath.Ext(file) == "" && filepath.Base(file) != "new" && filepath.Base(file) != "keep" {
		s.runCommand(os.MkdirAll(path, 0o755))
		return
	}
	s.runCommand(os.MkdirAll(filepath.Dir(path), 0o755))
}
