package spec

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/launcher/spec/seccomp"
)

// Security is what a container may do.
type Security struct {
	// CapAdd and CapDrop are in the form of [ChooseCapabilities].
	CapAdd, CapDrop []string
	// Privileged gives all capabilities that can't lift device isolation, masks no paths, and filters
	// only the system calls that would lift device isolation. It adds no devices.
	Privileged bool
	// NewPrivileges lets programs gain privileges, as by set-uid.
	NewPrivileges bool
	// Seccomp is a file with a filter in docker's format, or "unconfined"; "" means the default filter.
	Seccomp string
	// AppArmor is the name of a profile; "" or "unconfined" means none.
	AppArmor string
}

// unconfined is docker's word for no filter, or no profile.
const unconfined = "unconfined"

// Privileges are the result of applying Security on a host.
type Privileges struct {
	Capabilities Capabilities
	// NeedsOuterCgroup means that the container may be able to change its own cgroup, because it has
	// more capabilities or system calls than usual. An outer cgroup must have its device rules as well.
	NeedsOuterCgroup bool
	// Filter returns the system call filter. The first call builds it.
	Filter func() *seccomp.Filter
}

// ChoosePrivileges chooses capabilities and system call filter. The container gets none of the forbidden
// capabilities.
func (s Settings) ChoosePrivileges(h Host, forbidden ...string) (p Privileges, err error) {
	add := s.CapAdd
	if s.Privileged {
		if len(s.CapDrop) > 0 {
			return p, errors.New("--privileged and --cap-drop contradict each other; --cap-add ALL with --cap-drop drops single ones")
		}
		add = []string{"ALL"}
	}
	if p.Capabilities, err = ChooseCapabilities(h, add, slices.Concat(s.droppedCapabilities(add), forbidden)); err != nil {
		return p, err
	}
	p.NeedsOuterCgroup = s.Privileged || p.Capabilities.Unusual || s.Seccomp != ""
	switch {
	case s.Seccomp == unconfined || s.Seccomp == "" && s.Privileged:
		p.Filter = func() *seccomp.Filter { return seccomp.Unconfined(p.Capabilities.Names) }
	case s.Seccomp != "":
		filter, err := readProfile(s.Seccomp, p.Capabilities.Names)
		p.Filter = func() *seccomp.Filter { return filter }
		return p, err
	case s.StorageSize > 0:
		p.Filter = sync.OnceValue(func() *seccomp.Filter { return seccomp.DefaultInProject(p.Capabilities.Names) })
	default:
		p.Filter = sync.OnceValue(func() *seccomp.Filter { return seccomp.Default(p.Capabilities.Names) })
	}
	return p, nil
}

// droppedCapabilities returns the capabilities to drop. NET_RAW is a default in a network namespace of
// the container's own. In the host's it could forge any packet, so it has to be asked for.
func (s Settings) droppedCapabilities(add []string) []string {
	isAll := func(name string) bool { return strings.EqualFold(name, "ALL") }
	if s.Network == "none" || slices.ContainsFunc(add, isAll) {
		return s.CapDrop
	}
	return append(slices.Clip(s.CapDrop), "NET_RAW")
}

// maxProfile bounds the file of a filter, in bytes. The kernel accepts 4096 instructions.
const maxProfile = 4 << 20

func readProfile(path string, caps []string) (*seccomp.Filter, error) {
	data, err := smallfile.Read(path, maxProfile)
	if err != nil {
		return nil, fmt.Errorf("--security-opt seccomp=%s: %w", path, err)
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return nil, fmt.Errorf("read the kernel's release: %w", err)
	}
	f, err := seccomp.ParseProfile(data, caps, unix.ByteSliceToString(u.Release[:]))
	if err != nil {
		return nil, fmt.Errorf("--security-opt seccomp=%s: %w", path, err)
	}
	return f, nil
}

// check returns an error for an AppArmor profile that this kernel doesn't have, and for a container that
// needs an outer cgroup but is to share the host's cgroup namespace, through which it could reach it.
func (s Security) check(p Privileges, cgroupNamespace string) error {
	if p.NeedsOuterCgroup && cgroupNamespace == "host" {
		return errors.New("--cgroupns host: a task with more capabilities than usual, or another filter, needs a cgroup namespace of its own, so that it can't reach the outer cgroup with its device rules")
	}
	return checkAppArmor(s.AppArmor, "/sys/module/apparmor/parameters/enabled", "/sys/kernel/security/apparmor/profiles")
}

func checkAppArmor(name, enabled, profiles string) error {
	if name == "" || name == unconfined {
		return nil
	}
	on, err := os.ReadFile(enabled)
	if err != nil || strings.TrimSpace(string(on)) != "Y" {
		return fmt.Errorf("--security-opt apparmor=%s: this kernel has no AppArmor; leave it out", name)
	}
	loaded, err := os.ReadFile(profiles)
	if err != nil {
		return nil // the runtime checks the profile
	}
	for line := range strings.Lines(string(loaded)) {
		if strings.HasPrefix(line, name+" (") {
			return nil
		}
	}
	return fmt.Errorf("--security-opt apparmor=%s: no profile of that name is loaded; apparmor_parser -r FILE loads one", name)
}
