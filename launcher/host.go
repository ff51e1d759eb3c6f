package launcher

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/launcher/ociruntime"
	"github.com/berth-gpu/berth/launcher/spec"
)

// ErrNoRuntime means that no OCI runtime was found.
var ErrNoRuntime = errors.New("no OCI runtime")

// host is the machine and this process's rights on it, read once for a launch.
type host struct {
	spec.Host
	privileges spec.Privileges // the task's
	runtime    string          // absolute path
}

// newHost reads the machine. forbidden are capabilities that the task can't have.
func newHost(o Options, forbidden ...string) (*host, error) {
	h := &host{}
	var err error
	if h.Host, err = spec.ReadHost(o.Cgroup, o.Place != nil); err != nil {
		return nil, err
	}
	if h.privileges, err = o.ChoosePrivileges(h.Host, forbidden...); err != nil {
		return nil, err
	}
	if h.UserNamespace { // it has no device rules that a task could change
		h.privileges.NeedsOuterCgroup = false
	}
	go h.privileges.Filter() // in the background: building the filter takes as long as reading the image
	h.runtime, err = h.findRuntime(o.Runtime)
	return h, err
}

// ChooseRuntime returns the path of the OCI runtime that a launch with these options uses on this
// machine, or the launch's error. An ordinary user's launches are in a user namespace, which this process needn't be in.
func ChooseRuntime(o Options) (string, error) {
	o = o.withDefaults()
	if os.Geteuid() != 0 {
		cgroups, err := cgroup.Detect(o.Cgroup)
		if err != nil {
			return "", err
		}
		h := host{Host: spec.Host{Cgroups: cgroups, UserNamespace: true}}
		return h.findRuntime(o.Runtime)
	}
	h, err := newHost(o)
	if err != nil {
		return "", err
	}
	return h.runtime, nil
}

// findRuntime returns the runtime that was asked for by path or name. By default it prefers crun,
// which starts a container in a third of runc's time, unless crun is known to fail on this machine.
func (h *host) findRuntime(asked string) (string, error) {
	if strings.Contains(asked, "/") {
		if !ociruntime.IsExecutable(asked) {
			return "", fmt.Errorf("%w: %s is not an executable file", ErrNoRuntime, asked)
		}
		return filepath.Abs(asked)
	}
	if asked != "" {
		if path := ociruntime.LookUp(asked); path != "" {
			return path, nil
		}
		return "", fmt.Errorf("%w: there is no %s in %s", ErrNoRuntime, asked, ociruntime.Programs)
	}
	first, second := ociruntime.LookUp("crun"), ociruntime.LookUp("runc")
	if second != "" && !h.Cgroups.CrunWorks(h.UserNamespace || h.MayExceedLimits() || h.Memlock == unix.RLIM_INFINITY) {
		return second, nil
	}
	if first == "" {
		first = second
	}
	if first == "" {
		return "", fmt.Errorf("%w: neither crun nor runc is installed", ErrNoRuntime)
	}
	return first, nil
}
