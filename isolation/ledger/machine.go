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

// system is all that the ledger knows of the machine beyond its own files.
type system interface {
	// Now is the time (UTC: to know the local one takes files), and the time since boot, which no clock change moves.
	Now() (time.Time, time.Duration)
	// Self is the calling process, and where it stood when it first asked.
	Self() (self, error)
	// Process looks at a process of this pid namespace. The error Is
	// fs.ErrNotExist if there is none.
	Process(pid int) (seen, error)
	// Populated says whether any process lives in the cgroup or below it.
	Populated(cgroup string) (bool, error)
	// Claims lists what the pid file and the runtime's state say is the
	// container's init, whether that process exists or not.
	Claims(o Owner) []claim
	// Reaper says whether a process of this pid namespace is pid 1 of another one.
	Reaper(pid int) bool
}

// self is the calling process and where it stands.
type self struct {
	Process
	boot     string
	cgroup   string
	cgroupNS uint64
	// elsewhere: the mounted cgroups begin below the root, as in a container that shares the host's
	// cgroup namespace. No path means the same cgroup there.
	elsewhere bool
	// blind: cgroups list only processes of this pid namespace and those below it, and it has others
	// above it.
	blind bool
}

// firstPIDNamespace is the inode of the machine's first pid namespace: PROC_PID_INIT_INO of the kernel's
// linux/proc_ns.h.
const firstPIDNamespace = 0xEFFFFFFC

// seen is a process as it is now.
type seen struct {
	start uint64
	// dead: a zombie of which no thread runs.
	dead bool
}

// claim is one source's word about a container's init.
type claim struct {
	pid      int
	seen     seen   // the process that has the pid now; dead if there is none
	recorded uint64 // the start that the source recorded, 0 if it doesn't
	in       string // the cgroup that the process is in now
	own      string // the container's cgroup by that source, "" if it doesn't say
}

// machine is the real world.
type machine struct {
	proc   string
	cgroup func() (cgroup.Hierarchy, error)
	self   func() (self, error)
	offset func() (process.BootOffset, error)
}

func openMachine(proc, mount string) *machine {
	m := &machine{proc: proc}
	m.cgroup = sync.OnceValues(func() (cgroup.Hierarchy, error) { return cgroup.Detect(mount) })
	m.self = sync.OnceValues(m.readSelf)
	m.offset = sync.OnceValues(func() (process.BootOffset, error) { return process.ReadBootOffset(proc) })
	return m
}

// tick is the unit of Process.Start: the kernel's USER_HZ is 100 on every
// architecture that Go knows.
const tick = time.Second / 100

func (m *machine) Now() (time.Time, time.Duration) {
	offset, err := m.offset()
	uptime, err2 := offset.HostUptime()
	if err != nil || err2 != nil {
		return time.Now().UTC(), 0 // then any start is late enough; the other proofs remain
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
	s.Start = me.start
	if s.Namespace, err = readInode(m.proc + "/self/ns/pid"); err != nil {
		return self{}, err
	}
	if s.cgroupNS, err = readInode(m.proc + "/self/ns/cgroup"); err != nil {
		return self{}, err
	}
	if s.boot, err = smallfile.String(m.proc + "/sys/kernel/random/boot_id"); err != nil {
		return self{}, err
	}
	if s.cgroup, err = m.ownCgroup(s.PID); err != nil {
		return s, err
	}
	if h, err := m.cgroup(); err == nil {
		s.blind = h.Version == cgroup.V1 && s.Namespace != firstPIDNamespace
		if dir, err := h.Dir(s.cgroup); err == nil {
			_, err := os.Stat(dir)
			s.elsewhere = errors.Is(err, fs.ErrNotExist)
		}
	}
	return s, nil
}

// ownCgroup is "" where there are no cgroups, which is one proof of life less,
// and where ours is outside of our own namespace and has no path that means
// anything here.
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

func readInode(path string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return st.Ino, nil
}

func (m *machine) Process(pid int) (seen, error) {
	if pid <= 0 {
		return seen{}, fs.ErrNotExist
	}
	path := m.proc + "/" + strconv.Itoa(pid) + "/stat"
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return seen{}, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }() // opened for reading
	var buf [1024]byte
	n, err := unix.Read(fd, buf[:])
	if errors.Is(err, unix.ESRCH) {
		err = fs.ErrNotExist
	}
	if err != nil {
		return seen{}, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	s, err := parseStat(string(buf[:n]))
	if err != nil {
		return seen{}, fmt.Errorf("read %s: %w", path, err)
	}
	offset, err := m.offset()
	if err == nil {
		s.start, err = offset.HostTicks(s.start)
	}
	return s, err
}

// parseStat reads /proc/PID/stat: the program's name, second and in parentheses,
// may itself hold blanks and parentheses. Source: proc_pid_stat(5).
func parseStat(stat string) (seen, error) {
	_, rest, ok := cutLast(stat, ") ")
	f := strings.Fields(rest)
	const state, threads, start = 0, 17, 19 // fields 3, 20 and 22 of the page
	if !ok || len(f) <= start {
		return seen{}, errors.New("not a process's stat")
	}
	n, err := strconv.ParseUint(f[start], 10, 64)
	if err != nil {
		return seen{}, err
	}
	// When the main thread of a process has ended, the process looks like a zombie
	// although its other threads run: the count of threads tells.
	isZombie := f[state] == "Z" || f[state] == "X"
	return seen{start: n, dead: isZombie && (f[threads] == "0" || f[threads] == "1")}, nil
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
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
			c.seen.dead = true
		}
	}
	return claims
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
