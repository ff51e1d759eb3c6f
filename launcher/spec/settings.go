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

// Settings are what people ask of a container, in the words of docker's flags. [Settings.Check]
// is called before anything is made.
type Settings struct {
	// Command replaces the image's; its entrypoint stays in front.
	Command []string
	// Entrypoint replaces the image's, and the image's command with it. nil leaves both, and
	// one without words leaves Command alone.
	Entrypoint []string
	// Env entries are "K=V" and win over the image's.
	Env []string
	// Volumes are "SRC:DST[:OPTIONS]", see [ParseVolume]. Mounts are made beside them.
	Volumes []string
	Mounts  []specs.Mount
	// Dir and User replace what the image says. User is "user[:group]".
	Dir, User string
	// Groups are supplementary ones, names of the image or numbers.
	Groups []string
	// Terminal gives the container a terminal of its own.
	Terminal bool
	// Network is "host", "none", or one of a gang's.
	Network string
	// ReadOnly: nothing can be written to the root. ReadWrite: writes go to the directory
	// that is the image. Neither: writes are thrown away at the end.
	ReadOnly, ReadWrite bool
	// StorageSize bounds in bytes what the container writes to its root; 0 doesn't.
	StorageSize int64
	// Hostname and Domainname; "" means the container's name, and none.
	Hostname, Domainname string
	// Hosts are further lines for the container's /etc/hosts, "ADDRESS\tNAME".
	Hosts []string
	// Resolver is what the container's /etc/resolv.conf says in place of the host's.
	Resolver Resolver
	// Annotations go into the spec.
	Annotations map[string]string
	// IPC, UTS and CgroupNS are "host", or "private" or "" for one of the container's own.
	IPC, UTS, CgroupNS string
	// Sysctls are kernel parameters of the container's own namespaces.
	Sysctls map[string]string
	// Init makes catatonit the container's first process: it forwards signals, and reaps the
	// orphans of the command.
	Init bool

	Security
	Resources
}

// Resolver is how names are looked up.
type Resolver struct{ Servers, Search, Options []string }

// Check fails for settings that are wrong or that this host can't satisfy, whatever the
// image is. The error is one line that names the flag.
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

// checkStorageSize fails where nothing holds the container to its size.
func (s Settings) checkStorageSize(p Privileges) error {
	switch {
	case s.StorageSize == 0:
		return nil
	case s.ReadWrite:
		return errors.New("--storage-opt size: with --rw the task writes to the image itself, which has no size; leave out one of them")
	case s.Privileged || s.Seccomp != "" || slices.Contains(p.Capabilities.Names, "CAP_SYS_ADMIN"),
		slices.Contains(p.Capabilities.Names, "CAP_SYS_RESOURCE"): // ext4's quotas don't hold it
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

// checkSysctl allows the parameters of namespaces that the container has of its own. All
// others are the whole machine's.
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

// checkAnnotations refuses those that instruct the runtime or berth.
func (s Settings) checkAnnotations() error {
	for name := range s.Annotations {
		switch {
		case strings.HasPrefix(name, "berth."):
			return fmt.Errorf("--annotation %s: it is for engines that have no other word; here --gpus asks for devices", name)
		case strings.HasPrefix(name, "dev.berth."), strings.HasPrefix(name, "run.oci."), strings.HasPrefix(name, "org.systemd."):
			return fmt.Errorf("--annotation %s: berth and the runtime speak to each other with it; take another name", name)
		}
	}
	return nil
}

func isHostname(s string) bool { return tasks.ValidName(s) && !strings.Contains(s, "..") }
