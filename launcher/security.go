package launcher

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/launcher/spec"
)

// Security is what a task may do.
type Security struct {
	// CapAdd and CapDrop are capabilities as spec.Choose takes them.
	CapAdd, CapDrop []string
	// Privileged gives every capability that leaves the walls, hides nothing of the
	// kernel's file systems, and filters no system calls but those that would take the
	// walls down. It brings no devices.
	Privileged bool
	// NewPrivileges lets programs raise theirs, as by set-uid.
	NewPrivileges bool
	// Seccomp is a file with a filter in Docker's form, or "unconfined"; "" is the
	// usual filter.
	Seccomp string
	// AppArmor is a profile's name, "" or "unconfined" none.
	AppArmor string
}

// unconfined is what people write for no filter, or no profile.
const unconfined = "unconfined"

// usual says that the task can do no more than every task: nothing of it needs to
// be held by more than its own cgroup.
func (h *host) usual(s Security) bool { return !s.Privileged && !h.caps.More && s.Seccomp == "" }

// secure chooses capabilities and filter.
func (h *host) secure(o Options, never []string) (err error) {
	add := o.CapAdd
	if o.Privileged {
		if len(o.CapDrop) > 0 {
			return errors.New("--privileged and --cap-drop contradict each other; --cap-add ALL with --cap-drop takes single ones away")
		}
		add = []string{"ALL"}
	}
	if h.caps, err = spec.Choose(h.give, add, append(dropped(o, add), never...)); err != nil {
		return err
	}
	switch {
	case o.Seccomp == unconfined || o.Seccomp == "" && o.Privileged:
		h.filter = spec.Unconfined
	case o.Seccomp != "":
		filter, err := readProfile(o.Seccomp, h.caps)
		h.filter = func() *spec.Filter { return filter }
		return err
	default:
		h.filter = sync.OnceValue(func() *spec.Filter { return spec.NewFilter(h.caps) })
	}
	return nil
}

// dropped are the capabilities that the task isn't to have. Raw packets are usual in a
// network of one's own; on the host's they are everybody's, so who wants them says so.
func dropped(o Options, add []string) []string {
	all := func(name string) bool { return strings.EqualFold(name, "ALL") }
	if o.Network == "none" || slices.ContainsFunc(add, all) {
		return o.CapDrop
	}
	return append(slices.Clip(o.CapDrop), "NET_RAW")
}

// maxProfile is far more than any filter has; the kernel takes 4096 instructions.
const maxProfile = 4 << 20

func readProfile(path string, c spec.Capabilities) (*spec.Filter, error) {
	data, err := smallfile.Read(path, maxProfile)
	if err != nil {
		return nil, fmt.Errorf("--security-opt seccomp=%s: %w", path, err)
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return nil, fmt.Errorf("read the kernel's release: %w", err)
	}
	f, err := spec.ParseProfile(data, c, unix.ByteSliceToString(u.Release[:]))
	if err != nil {
		return nil, fmt.Errorf("--security-opt seccomp=%s: %w", path, err)
	}
	return f, nil
}

// checkSecurity fails for what this kernel can't do, and for what would open a way
// around the outer walls of a task that can take off its own.
func (o Options) checkSecurity(h *host) error {
	if !h.usual(o.Security) && o.CgroupNS == "host" {
		return errors.New("--cgroupns host: a task with more capabilities than usual, or another filter, has to be in a cgroup namespace of its own: its walls are outside")
	}
	return checkAppArmor(o.AppArmor, "/sys/module/apparmor/parameters/enabled", "/sys/kernel/security/apparmor/profiles")
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
