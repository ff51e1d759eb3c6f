package spec

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/internal/spell"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// Settings of a container, named after docker's flags. [Settings.Check] is called before anything is
// created.
type Settings struct {
	// Command replaces the image's; its entrypoint stays in front.
	Command []string
	// Entrypoint replaces the image's entrypoint and command. nil keeps both; an empty one leaves only
	// Command.
	Entrypoint []string
	// Env entries are "K=V" and win over the image's.
	Env []string
	// Volumes are "SRC:DST[:OPTIONS]", see [ParseVolume]. Mounts are further mounts.
	Volumes []string
	Mounts  []specs.Mount
	// Dir and User override those of the image. User is "user[:group]".
	Dir, User string
	// Groups are supplementary ones, names of the image or numbers.
	Groups []string
	// Terminal gives the container a terminal of its own.
	Terminal bool
	// Network is "host", "none", or one of a gang's.
	Network string
	// ReadOnly makes the root read-only. ReadWrite makes writes go to the image itself, which must be a
	// directory. Otherwise writes are discarded at the end.
	ReadOnly, ReadWrite bool
	// StorageSize bounds what the container writes to its root, in bytes; 0 means no limit.
	StorageSize int64
	// Hostname "" means the container's name, Domainname "" none.
	Hostname, Domainname string
	// Hosts are further lines for the container's /etc/hosts, "ADDRESS\tNAME".
	Hosts []string
	// Resolver overrides the host's settings in the container's /etc/resolv.conf.
	Resolver Resolver
	// Annotations go into the spec.
	Annotations map[string]string
	// IPC, UTS and CgroupNS are namespaces: "host", or "private" or "" for one of the container's own.
	IPC, UTS, CgroupNS string
	// Sysctls are kernel parameters of the container's own namespaces.
	Sysctls map[string]string
	// Init makes catatonit the container's first process, which forwards signals and reaps orphans.
	Init bool

	Security
	Resources
}

// Resolver has the settings of the DNS resolver.
type Resolver struct{ Servers, Search, Options []string }

// Check returns an error for settings that are invalid or that this host can't satisfy with any image.
// The error is one line that names the flag.
func (s Settings) Check(h Host, p Privileges) error {
	if s.ReadOnly && s.ReadWrite {
		return errors.New("a root file system can't be both read-only and writable")
	}
	for _, kv := range s.Env {
		if !IsEnvEntry(kv) {
			return fmt.Errorf("environment entry %q is not NAME=VALUE", kv)
		}
	}
	return cmp.Or(s.checkNames(), s.checkNamespaces(), s.checkSysctls(), s.checkAnnotations(),
		s.Resources.check(h), s.Security.check(p, s.CgroupNS), s.checkStorageSize(p))
}

// checkStorageSize returns an error if the container could exceed or lift its StorageSize.
func (s Settings) checkStorageSize(p Privileges) error {
	switch {
	case s.StorageSize == 0:
		return nil
	case s.ReadWrite:
		return errors.New("--storage-opt size: with --rw the task writes to the image itself, which has no size; leave out one of them")
	case s.Privileged || s.Seccomp != "" || slices.Contains(p.Capabilities.Names, "CAP_SYS_ADMIN"),
		slices.Contains(p.Capabilities.Names, "CAP_SYS_RESOURCE"): // exempt from ext4's quotas
		return errors.New("--storage-opt size: a task with --privileged, CAP_SYS_ADMIN, CAP_SYS_RESOURCE or another system call filter could lift it; leave out one of them")
	}
	return nil
}

func (s Settings) checkNames() error {
	for flag, name := range map[string]string{"--hostname": s.Hostname, "--domainname": s.Domainname} {
		if name != "" && !isHostname(name) {
			return fmt.Errorf("%s %q: only letters, digits, \".\", \"_\" and \"-\" are allowed, at most 63, beginning with a letter or digit", flag, name)
		}
	}
	if r := s.Resolver; s.Network == "none" && len(r.Servers)+len(r.Search)+len(r.Options) > 0 {
		return errors.New("--dns: with --network none there is no server to ask")
	}
	return nil
}

func (s Settings) checkNamespaces() error {
	for flag, kind := range map[string]string{"--ipc": s.IPC, "--uts": s.UTS, "--cgroupns": s.CgroupNS} {
		if kind != "" && kind != "private" && kind != "host" {
			return fmt.Errorf("%s %q is not known%s: there are private and host", flag, kind, spell.Suggestion(kind, "private", "host"))
		}
	}
	switch {
	case s.UTS == "host" && s.Hostname+s.Domainname != "":
		return errors.New("--uts host: the host's name can't be changed; leave out --hostname and --domainname, or --uts")
	case s.IPC == "host" && s.Shm > 0:
		return errors.New("--ipc host: the task has the host's /dev/shm, whose size is its own; leave out --shm-size or --ipc")
	}
	return nil
}

func (s Settings) checkSysctls() error {
	for name := range s.Sysctls {
		if err := s.checkSysctl(name); err != nil {
			return fmt.Errorf("--sysctl %s: %w", name, err)
		}
	}
	return nil
}

// checkSysctl returns an error unless the parameter belongs to a namespace of the container's own.
func (s Settings) checkSysctl(name string) error {
	ipc := []string{"kernel.msgmax", "kernel.msgmnb", "kernel.msgmni", "kernel.sem", "kernel.shmall", "kernel.shmmax", "kernel.shmmni", "kernel.shm_rmid_forced"}
	switch {
	case slices.Contains(ipc, name) || strings.HasPrefix(name, "fs.mqueue."):
		if s.IPC == "host" {
			return errors.New("it is the host's with --ipc host; set it on the host")
		}
	case strings.HasPrefix(name, "net."):
		if s.Network == "host" {
			return errors.New("the task shares the host's network; set it on the host, or take --network none")
		}
	case name == "kernel.hostname" || name == "kernel.domainname":
		return errors.New("--hostname and --domainname set it")
	default:
		return errors.New("it is the whole machine's; set it on the host")
	}
	if strings.Contains(name, "/") || strings.Contains(name, "..") {
		return errors.New("not the name of a parameter")
	}
	return nil
}

// checkAnnotations returns an error for annotations that the runtime or berth interprets.
func (s Settings) checkAnnotations() error {
	for name := range s.Annotations {
		switch {
		case strings.HasPrefix(name, "berth."):
			return fmt.Errorf("--annotation %s: it is for other engines; here --gpus asks for devices", name)
		case strings.HasPrefix(name, "dev.berth."), strings.HasPrefix(name, "run.oci."), strings.HasPrefix(name, "org.systemd."):
			return fmt.Errorf("--annotation %s: berth and the runtime use it; choose another name", name)
		}
	}
	return nil
}

func isHostname(s string) bool { return tasks.ValidName(s) && !strings.Contains(s, "..") }
