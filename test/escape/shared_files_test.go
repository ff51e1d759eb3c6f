package escape

import (
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// sharedFileAttacks are attacks on the files that all containers share: a lease on one of them (fcntl(2),
// F_SETLEASE) delays every other container that opens the file.
func sharedFileAttacks() []attack {
	const class = "a tenant's lease on a file of the driver freezes CUDA for all"
	return []attack{
		{name: "files/lease", class: class, gained: leaseWasTaken, build: func(s *scene) {
			s.askForFiles()
			s.addCommand("lease /usr/local/nvidia/lib64/libnvidia-ml.so.1", "lease /usr/local/nvidia/bin/nvidia-smi")
		}},
		{name: "files/lease after umount", class: class, gained: leaseWasTaken, build: func(s *scene) {
			s.askForFiles()
			s.umountSharedFiles()
			s.addCommand("lease /usr/local/nvidia/lib64/libnvidia-ml.so.1")
		}},
		{
			name: "files/lease by capability", class: class, gained: leaseWasTaken,
			not: map[string]string{"hook": "it works: capabilities are the runtime's, and no hook changes them (docs/security.md)"},
			build: func(s *scene) {
				s.askForFiles()
				for _, set := range []*[]string{
					&s.spec.Process.Capabilities.Bounding, &s.spec.Process.Capabilities.Permitted, &s.spec.Process.Capabilities.Effective,
				} {
					*set = append(append([]string{}, *set...), "CAP_LEASE")
				}
				s.addCommand("lease /usr/local/nvidia/lib64/libnvidia-ml.so.1")
			},
		},
	}
}

// umountSharedFiles puts the host into the state after a boot.
func (s *scene) umountSharedFiles() {
	s.t.Helper()
	s.w.Do(s.t, "sh", "-c", "at=/var/lib/berth/shared; ! mountpoint -q $at || umount $at 2>/dev/null || busybox umount $at")
}

// hostBindAttacks are attacks with bind mounts of the host's directories that an engine's user made.
func hostBindAttacks() []attack {
	hook := map[string]string{"hook": "it works: the mounts are the runtime's, made before the hook (docs/security.md)"}
	const noWord = "its options have no word for that"
	words := map[string]string{"hook": hook["hook"], "docker": noWord, "podman": noWord}
	bind := func(s *scene, source string) {
		s.spec.Mounts = append(s.spec.Mounts, specs.Mount{Destination: "/host", Type: "bind", Source: source, Options: []string{"rbind"}})
	}
	open := func(s *scene, files ...string) {
		for _, file := range files {
			s.addCommand("open " + file)
			s.foreign["open "+file] = true
		}
	}
	return []attack{
		{name: "binds/sysfs", class: "a GPU's PCI configuration and driver_override are files of sysfs", gained: deviceWasOpened, not: hook, build: func(s *scene) {
			bind(s, "/sys")
			open(s, "/host/kernel/mm/transparent_hugepage/enabled")
		}},
		{name: "binds/recursively writable", class: "an option that runtimes apply after ro makes a bind mount writable", gained: deviceWasOpened, not: words, build: func(s *scene) {
			s.spec.Mounts = append(s.spec.Mounts, specs.Mount{Destination: "/host", Type: "bind", Source: "/sys/kernel", Options: []string{"rbind", "ro", "rrw"}})
			open(s, "/host/mm/transparent_hugepage/enabled")
		}},
		{name: "binds/remount", class: "a second mount makes a read-only one writable", gained: deviceWasOpened, not: words, build: func(s *scene) {
			bind(s, "/sys/kernel")
			s.spec.Mounts = append(s.spec.Mounts, specs.Mount{Destination: "/host", Type: "bind", Source: "/tmp", Options: []string{"bind", "remount", "rw"}})
			open(s, "/host/mm/transparent_hugepage/enabled")
		}},
		{name: "binds/procfs", class: "kernel.core_pattern names a program that the host runs", gained: deviceWasOpened, not: hook, build: func(s *scene) {
			bind(s, "/proc")
			open(s, "/host/sys/kernel/core_pattern")
		}},
		{name: "binds/driver files", class: "a directory above the driver's files has them with their owner", gained: leaseWasTaken, not: hook, build: func(s *scene) {
			files, err := filepath.Glob(s.w.Path("/var/lib/berth/driver") + "/*/all/files/lib64/libnvidia-ml.so.1")
			if err != nil || len(files) == 0 {
				s.t.Fatalf("no driver files: %v", err)
			}
			s.umountSharedFiles()
			bind(s, "/var/lib/berth")
			s.addCommand("lease /host" + strings.TrimPrefix(files[0], s.w.Path("/var/lib/berth")))
		}},
	}
}

// askForFiles makes the naive injector bind the driver's files, which it doesn't for other attacks.
func (s *scene) askForFiles() {
	s.spec.Process.Env = append(s.spec.Process.Env, "NVIDIA_DRIVER_CAPABILITIES=utility")
}

// leaseWasTaken returns a gain if a lease was taken. Any answer other than the kernel's to a process that
// doesn't own the file, for instance that of a missing file, proves nothing.
func leaseWasTaken(s *scene) string {
	for command, answer := range s.answers {
		switch {
		case !strings.HasPrefix(command, "lease "):
		case answer == "ok":
			return command + " holds up whoever opens the file"
		case answer != "EACCES" && s.entryPoint != "naive" && strings.Contains(command, " /usr/local/nvidia/"):
			s.t.Errorf("%s: %s proves nothing", command, answer)
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
