package launcher

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/launcher/spec"
)

// host is what this process finds and may do on the machine.
type host struct {
	tree    cgroup.Hierarchy
	give    spec.Host
	runtime string // absolute path
	// caps are the task's, and filter makes its system call filter.
	caps   spec.Capabilities
	filter func() *spec.Filter
}

// newHost looks at the machine. never are capabilities that the task can't have.
func newHost(o Options, never ...string) (*host, error) {
	h := &host{}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil, fmt.Errorf("read own capabilities: %w", err)
	}
	uidMap, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return nil, fmt.Errorf("read own user namespace: %w", err)
	}
	h.give.Capabilities = permitted(string(status))
	if err := checkRoot(os.Geteuid(), string(uidMap), h.give.Capabilities); err != nil {
		return nil, err
	}
	if h.give.NoFile, err = hardLimit(unix.RLIMIT_NOFILE); err != nil {
		return nil, err
	}
	if h.give.Memlock, err = hardLimit(unix.RLIMIT_MEMLOCK); err != nil {
		return nil, err
	}
	if h.tree, err = cgroup.Detect(o.Cgroup); err != nil {
		return nil, err
	}
	if err := h.secure(o, never); err != nil {
		return nil, err
	}
	go h.filter() // it takes as long as finding the rest
	h.runtime, err = h.findRuntime(o.Runtime)
	return h, err
}

// checkRoot tells root of the machine from a user, and from root of a user
// namespace, who could start a container without being able to wall it off.
func checkRoot(uid int, uidMap string, caps uint64) error {
	f := strings.Fields(uidMap)
	switch {
	case len(f) != 3 || f[0] != "0" || f[1] != "0" || f[2] != "4294967295":
		return fmt.Errorf("%w: this is a user namespace, whose root can't set device rules", ErrNotRoot)
	case uid != 0:
		return fmt.Errorf("%w: this is user %d", ErrNotRoot, uid)
	case caps&(1<<unix.CAP_SYS_ADMIN) == 0:
		return fmt.Errorf("%w: CAP_SYS_ADMIN is missing", ErrNotRoot)
	}
	return nil
}

func permitted(status string) uint64 {
	for line := range strings.SplitSeq(status, "\n") {
		if hex, ok := strings.CutPrefix(line, "CapPrm:"); ok {
			mask, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			if err == nil {
				return mask
			}
		}
	}
	return 0
}

func hardLimit(resource int) (uint64, error) {
	var r unix.Rlimit
	if err := unix.Getrlimit(resource, &r); err != nil {
		return 0, fmt.Errorf("read limit: %w", err)
	}
	return r.Max, nil
}

// needs says in one line which controller is missing for what was asked.
func (h *host) needs(controller, what string) error {
	have, err := h.tree.Controllers()
	if err != nil {
		return err
	}
	for _, c := range have {
		if c == controller {
			return nil
		}
	}
	return fmt.Errorf("can't %s: the machine has no cgroup controller %q, only %s", what, controller, strings.Join(have, ", "))
}

// programs is where runtimes are looked for; the environment doesn't decide
// which program becomes root's.
const programs = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// findRuntime prefers crun, which starts a container in a third of runc's time,
// except where released versions of it are known to fail.
func (h *host) findRuntime(asked string) (string, error) {
	if strings.Contains(asked, "/") {
		if !executable(asked) {
			return "", fmt.Errorf("%w: %s is not an executable file", ErrNoRuntime, asked)
		}
		return filepath.Abs(asked)
	}
	if asked != "" {
		if path := lookup(asked); path != "" {
			return path, nil
		}
		return "", fmt.Errorf("%w: there is no %s in %s", ErrNoRuntime, asked, programs)
	}
	first, second := lookup("crun"), lookup("runc")
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
	mayLift := h.give.Capabilities&(1<<unix.CAP_SYS_RESOURCE) != 0 || h.give.Memlock == unix.RLIM_INFINITY
	return !h.tree.Hybrid && (h.tree.Version == cgroup.V1 || mayLift)
}

func lookup(name string) string {
	for dir := range strings.SplitSeq(programs, ":") {
		if path := filepath.Join(dir, name); executable(path) {
			return path
		}
	}
	return ""
}

func executable(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0
}

var errUnknownOption = errors.New("unknown option")
