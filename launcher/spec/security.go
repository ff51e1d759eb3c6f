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
	// CapAdd and CapDrop are capabilities as [Choose] takes them.
	CapAdd, CapDrop []string
	// Privileged gives every capability that can't lift device isolation, hides nothing of
	// the kernel's file systems, and filters no system calls but those that would lift it.
	// It brings no devices.
	Privileged bool
	// NewPrivileges lets programs raise theirs, as by set-uid.
	NewPrivileges bool
	// Seccomp is a file with a filter in Docker's form, or "unconfined"; "" is the default
	// filter.
	Seccomp string
	// AppArmor is a profile's name, "" or "unconfined" none.
	AppArmor string
}

// unconfined is docker's word for no filter, or no profile.
const unconfined = "unconfined"

// Privileges are what Security comes to on a host.
type Privileges struct {
	Capabilities Capabilities
	// NeedsOuterCgroup says that the container may be able to change its own cgroup, by
	// more capabilities or system calls than usual. Its device rules have to be on a
	// cgroup around it as well.
	NeedsOuterCgroup bool
	// Filter returns the system call filter, and makes it at the first call.
	Filter func() *seccomp.Filter
}

// ChoosePrivileges chooses capabilities and system call filter. never are capabilities that
// the container doesn't get in any case.
func (s Settings) ChoosePrivileges(h Host, never ...string) (p Privileges, err error) {
	add := s.CapAdd
	if s.Privileged {
		if len(s.CapDrop) > 0 {
			return p, errors.New("--privileged and --cap-drop contradict each other; --cap-add ALL with --cap-drop takes single ones away")
		}
		add = []string{"ALL"}
	}
	if p.Capabilities, err = ChooseCapabilities(h, add, slices.Concat(s.droppedCapabilities(add), never)); err != nil {
		return p, err
	}
	p.NeedsOuterCgroup = s.Privileged || p.Capabilities.Unusual || s.Seccomp != ""
	switch {
	case s.Seccomp == unconfined || s.Seccomp == "" && s.Privileged:
		p.Filter = seccomp.Unconfined
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

// droppedCapabilities are those that the container isn't to have. NET_RAW is usual in a
// network of one's own; on the host's it forges everybody's packets, and must be asked for.
func (s Settings) droppedCapabilities(add []string) []string {
	isAll := func(name string) bool { return strings.EqualFold(name, "ALL") }
	if s.Network == "none" || slices.ContainsFunc(add, isAll) {
		return s.CapDrop
	}
	return append(slices.Clip(s.CapDrop), "NET_RAW")
}

// maxProfile is far more than any filter has; the kernel takes 4096 instructions.
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

// check fails for what this kernel can't do, and for a cgroup namespace in which a container
// that can lift its device rules would reach the cgroup around it.
func (s Security) check(p Privileges, cgroupNamespace string) error {
	if p.NeedsOuterCgroup && cgroupNamespace == "host" {
		return errors.New("--cgroupns host: a task with more capabilities than usual, or another filter, has to be in a cgroup namespace of its own: the device rules that it can't lift are outside")
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
		return nil // the runtime tells
	}
	for line := range strings.Lines(string(loaded)) {
		if strings.HasPrefix(line, name+" (") {
			return nil
		}
	}
	return fmt.Errorf("--security-opt apparmor=%s: no profile of that name is loaded; apparmor_parser -r FILE loads one", name)
}
