package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/isolation/cgroup"
)

// system is the ledger's view of the machine beyond its own files; tests have a fake.
type system interface {
	// Now is the time (UTC: to know the local one takes files), and the time since boot, which no clock change moves.
	Now() (time.Time, time.Duration)
	// Self is the calling process, with its cgroup and namespaces at the first call.
	Self() (self, error)
	// OwnCgroup is the cgroup that the calling process is in now.
	OwnCgroup() (string, error)
	// Process reads the state of a process of this pid namespace. The error Is fs.ErrNotExist if
	// there is none.
	Process(pid int) (process.Stat, error)
	// Populated says whether any process lives in the cgroup or below it.
	Populated(cgroup string) (bool, error)
	// Claims lists what the pid file and the runtime's state say is the
	// container's init, whether that process exists or not.
	Claims(o Owner) []claim
	// Halted reports whether a process of this pid namespace is stopped by a signal, traced, or in a
	// frozen cgroup. It is false if that can't be determined.
	Halted(pid int) bool
	// Reaper says whether a process of this pid namespace is pid 1 of another one.
	Reaper(pid int) bool
}

// self is the calling process, with its boot id, cgroup and namespaces.
type self struct {
	Process
	boot     string
	cgroup   string
	cgroupNS uint64
	// partialTree is set if the mounted cgroup tree begins below the root, as in a container that
	// shares the host's cgroup namespace. Paths then mean other cgroups.
	partialTree bool
	// hidesPIDs is set if cgroups list only processes of this pid namespace and those below it, while the
	// machine has others: on cgroup version 1, in a pid namespace other than the machine's first.
	hidesPIDs bool
}

// firstPIDNamespace is the inode of the machine's first pid namespace: PROC_PID_INIT_INO of the kernel's
// linux/proc_ns.h.
const firstPIDNamespace = 0xEFFFFFFC

// claim is the pid of a container's init according to one source: the pid file or the runtime's
// state.
type claim struct {
	pid      int
	seen     process.Stat // the process that has the pid now; dead if there is none
	recorded uint64       // the start that the source recorded, 0 if it doesn't
	in       string       // the cgroup that the process is in now
	own      string       // the container's cgroup by that source, "" if it doesn't say
	stuck    error        // process.ErrStuck if the process has an unknown state; seen is that of a dead one then
}

// machine implements system with procfs and cgroups.
type machine struct {
	proc   string
	mount  string // of the cgroup file systems, "" for the usual one
	cgroup func() (cgroup.Hierarchy, error)
	self   func() (self, error)
	offset func() (process.BootOffset, error)
}

func openMachine(proc, mount string) *machine {
	m := &machine{proc: proc, mount: mount}
	m.cgroup = sync.OnceValues(func() (cgroup.Hierarchy, error) { return cgroup.Detect(mount) })
	m.self = sync.OnceValues(m.readSelf)
	m.offset = sync.OnceValues(func() (process.BootOffset, error) { return process.ReadBootOffset(proc) })
	return m
}

func (m *machine) Now() (time.Time, time.Duration) {
	offset, err := m.offset()
	uptime, err2 := offset.HostUptime()
	if err != nil || err2 != nil {
		return time.Now().UTC(), 0 // every process then counts as started after the lease; the other checks still apply
	}
	return time.Now().UTC(), uptime
}

func (m *machine) Self() (self, error) { return m.self() }

func (m *machine) readSelf() (s self, err error) {
	s.PID = os.Getpid()
	var link [20]byte
	n, err := unix.Readlink(m.proc+"/self", link[:])
	if err != nil {
		return self{}, &fs.PathError{Op: "readlink", Path: m.proc + "/self", Err: err}
	}
	if string(link[:n]) != strconv.Itoa(s.PID) {
		return self{}, fmt.Errorf("read own process: %s belongs to another pid namespace", m.proc)
	}
	me, err := m.Process(s.PID)
	if err != nil {
		return self{}, fmt.Errorf("read own process: %w", err)
	}
	s.Start = me.Start
	if s.Namespace, err = process.Namespace(m.proc, s.PID); err != nil {
		return self{}, err
	}
	if s.cgroupNS, err = process.NamespaceOf(m.proc, s.PID, "cgroup"); err != nil {
		return self{}, err
	}
	if s.boot, err = smallfile.String(m.proc + "/sys/kernel/random/boot_id"); err != nil {
		return self{}, err
	}
	if s.cgroup, err = m.ownCgroup(s.PID); err != nil {
		return s, err
	}
	if h, err := m.cgroup(); err == nil {
		s.hidesPIDs = h.Version == cgroup.V1 && s.Namespace != firstPIDNamespace
		if dir, err := h.Dir(s.cgroup); err == nil {
			_, err := os.Stat(dir)
			s.partialTree = errors.Is(err, fs.ErrNotExist)
		}
	}
	return s, nil
}

// ownCgroup returns the cgroup of a process. It is "" if the machine has no cgroups, or if the
// cgroup lies outside of this process's cgroup namespace. The ledger then has one proof of life
// less.
func (m *machine) ownCgroup(pid int) (string, error) {
	h, err := m.cgroup()
	if errors.Is(err, cgroup.ErrNone) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	path, err := h.ProcessPath(m.proc, pid)
	if errors.Is(err, cgroup.ErrPath) || errors.Is(err, cgroup.ErrNone) {
		return "", nil
	}
	return path, err
}

func (m *machine) Process(pid int) (process.Stat, error) {
	if pid <= 0 {
		return process.Stat{}, fs.ErrNotExist
	}
	return process.ReadStat(m.proc, pid, m.offset)
}

func (m *machine) Populated(path string) (bool, error) {
	h, err := m.cgroup()
	if err != nil {
		return false, err
	}
	return h.Populated(path)
}

func (m *machine) Claims(o Owner) []claim {
	h, err := m.cgroup()
	if err != nil {
		return nil
	}
	claims := readClaims(o, h)
	for i := range claims {
		c := &claims[i]
		if c.seen, err = m.Process(c.pid); err == nil {
			c.in, err = h.ProcessPath(m.proc, c.pid)
		}
		if err != nil {
			c.seen.Dead = true
		}
		if errors.Is(err, process.ErrStuck) {
			c.stuck = err
		}
	}
	return claims
}

func (m *machine) OwnCgroup() (string, error) { return m.ownCgroup(os.Getpid()) }

func (m *machine) Halted(pid int) bool {
	return process.Stopped(m.proc, pid) || process.FrozenCgroup(m.proc, m.mount, pid) != ""
}

func (m *machine) Reaper(pid int) bool {
	b, err := os.ReadFile(m.proc + "/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		if pids, ok := strings.CutPrefix(line, "NSpid:"); ok {
			all := strings.Fields(pids) // in this namespace, and in each one below
			return len(all) > 1 && all[len(all)-1] == "1"
		}
	}
	return false
}
