package launcher

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/launcher/ociruntime"
	"github.com/berth-gpu/berth/launcher/spec"
)

// ErrNoRuntime says that there is no OCI runtime to run a container with.
var ErrNoRuntime = errors.New("no OCI runtime")

// host is what this process finds and may do on the machine for one launch.
type host struct {
	spec.Host
	privileges spec.Privileges // the task's
	runtime    string          // absolute path
}

// newHost reads the machine. never are capabilities that the task can't have.
func newHost(o Options, never ...string) (*host, error) {
	h := &host{}
	var err error
	if h.Host, err = spec.ReadHost(o.Cgroup); err != nil {
		return nil, err
	}
	if h.privileges, err = o.ChoosePrivileges(h.Host, never...); err != nil {
		return nil, err
	}
	go h.privileges.Filter() // making it takes as long as reading the image
	h.runtime, err = h.findRuntime(o.Runtime)
	return h, err
}

// ChosenRuntime is the OCI runtime that a launch with these options takes on this
// machine. The error is the launch's.
func ChosenRuntime(o Options) (string, error) {
	h, err := newHost(o.withDefaults())
	if err != nil {
		return "", err
	}
	return h.runtime, nil
}

// findRuntime prefers crun, which starts a container in a third of runc's time,
// except where released versions of it are known to fail.
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
	if second != "" && !h.crunWorks() {
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

// crunWorks: crun refuses a hybrid of cgroup v1 and v2, and until 1.9 it wants
// to lift the memlock limit before it loads device rules on v2.
func (h *host) crunWorks() bool {
	mayLift := h.MayExceedLimits() || h.Memlock == unix.RLIM_INFINITY
	return !h.Cgroups.Hybrid && (h.Cgroups.Version == cgroup.V1 || mayLift)
}
