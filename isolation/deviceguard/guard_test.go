package deviceguard

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
)

// TestMain lets the test binary be a process that opens files.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "open" {
		for _, path := range os.Args[2:] {
			fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err == nil {
				err = unix.Close(fd)
			}
			var errno unix.Errno
			if errors.As(err, &errno) {
				fmt.Println(unix.ErrnoName(errno))
			} else {
				fmt.Println("ok")
			}
		}
		return
	}
	if len(os.Args) > 1 && os.Args[1] == "time" {
		timeOpens(os.Args[2])
		return
	}
	os.Exit(m.Run())
}

// timeOpens prints how many nanoseconds an open and close of the file take: the least of many
// rounds.
func timeOpens(path string) {
	const opens = 1000
	least := time.Duration(1 << 62)
	for range 200 {
		began := time.Now()
		for range opens {
			fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				fmt.Println(err)
				return
			}
			_ = unix.Close(fd) // only opened
		}
		least = min(least, time.Since(began))
	}
	fmt.Println(float64(least.Nanoseconds()) / opens)
}

// Devices of every machine stand for GPUs, because they can really be opened.
var (
	zero   = Number{1, 5}
	full   = Number{1, 7}
	random = Number{1, 8}
)

// tree is a cgroup of version 2, which the tests use as the root of the tree.
type tree struct {
	testing.TB
	root string
}

func newTree(t testing.TB) tree {
	t.Helper()
	testutil.NeedRoot(t)
	mount := "/sys/fs/cgroup"
	if _, err := os.Stat(mount + "/cgroup.procs"); err != nil {
		mount += "/unified"
	}
	if _, err := os.Stat(mount + "/cgroup.procs"); err != nil {
		testutil.SkipOrFail(t, "no cgroup v2 tree")
	}
	root, err := os.MkdirTemp(mount, "berth-deviceguard-test-")
	testutil.Must(t, err)
	c := tree{t, root}
	t.Cleanup(func() {
		var dirs []string
		testutil.Must(t, filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append([]string{path}, dirs...)
			}
			return err
		}))
		for _, dir := range dirs {
			testutil.Must(t, os.Remove(dir))
		}
	})
	return c
}

// id makes a cgroup and returns its id.
func (c tree) id(path string) uint64 {
	c.Helper()
	testutil.Must(c, os.MkdirAll(c.root+path, 0o755))
	var st unix.Stat_t
	testutil.Must(c, unix.Stat(c.root+path, &st))
	return st.Ino
}

// rules guard /dev/zero and /dev/full, and leave the rest of their major open.
func (c tree) rules(cgroups map[uint64]Entry) Rules {
	return Rules{
		Guarded: []Number{{1, AnyMinor}}, Open: []Number{{1, 3}, random, {1, 9}},
		Cgroups: cgroups, RootAllowed: true, PIDNamespace: "/proc/self/ns/pid",
	}
}

// opens returns the results of a process in the cgroup that opens /dev/zero, /dev/full and
// /dev/random.
func (c tree) opens(path string, uid uint32, flags uintptr) string {
	c.Helper()
	return c.run(path, uid, flags, "open", "/dev/zero", "/dev/full", "/dev/random")
}

// run runs the test binary in the cgroup, as another program.
func (c tree) run(path string, uid uint32, flags uintptr, args ...string) string {
	c.Helper()
	c.id(path)
	dir, err := os.Open(c.root + path)
	testutil.Must(c, err)
	defer dir.Close() // only passed on
	self, err := os.Executable()
	testutil.Must(c, err)
	cmd := exec.Command("/proc/self/fd/3", args...)
	program, err := os.Open(self) // other users can't reach its directory
	testutil.Must(c, err)
	defer program.Close() // only passed on
	cmd.ExtraFiles = []*os.File{program}
	cmd.Stdin = program
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd()), Cloneflags: flags}
	if flags&unix.CLONE_NEWUSER != 0 {
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: int(uid), Size: 1}}
		cmd.SysProcAttr.Credential = &syscall.Credential{NoSetGroups: true}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: int(uid), Size: 1}}
	} else {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: uid}
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		c.Fatalf("%v: %s", err, out)
	}
	return strings.Join(strings.Fields(string(out)), " ")
}

func (c tree) install(r Rules) {
	c.Helper()
	testutil.Must(c, Install(c.root, r))
	c.Cleanup(func() { testutil.Must(c, Remove(c.root)) })
}

// TestOpens is the table of which processes open which devices.
func TestOpens(t *testing.T) {
	c := newTree(t)
	deep := "/lease" + strings.Repeat("/d", 20)
	c.install(c.rules(map[uint64]Entry{
		c.id("/lease"):         {Lease, []Number{zero}},
		c.id("/lease/inner"):   {Lease, []Number{full}},
		c.id("/lease/nothing"): {Lease, nil},
		c.id("/exempt"):        {Exempt, nil},
		c.id("/exempt/lease"):  {Lease, []Number{zero}},
		c.id("/box"):           {Container, nil},
		c.id("/box/lease"):     {Lease, []Number{full}},
	}))
	const user = 4711
	for _, test := range []struct {
		name, cgroup string
		uid          uint32
		flags        uintptr
		want         string
	}{
		{"a user without a lease", "/user", user, 0, "EPERM EPERM ok"},
		{"the host's root", "/user", 0, 0, "ok ok ok"},
		{"root of a PID namespace", "/user", 0, unix.CLONE_NEWPID, "EPERM EPERM ok"},
		{"a user who is root in a user namespace", "/user", user, unix.CLONE_NEWUSER, "EPERM EPERM ok"},
		{"root who is root in a user namespace", "/user", 0, unix.CLONE_NEWUSER, "ok ok ok"},
		{"a lease", "/lease", user, 0, "ok EPERM ok"},
		{"a lease of root's", "/lease", 0, 0, "ok EPERM ok"},
		{"a lease in namespaces", "/lease", user, unix.CLONE_NEWUSER | unix.CLONE_NEWPID, "ok EPERM ok"},
		{"below a lease", "/lease/a/b", user, 0, "ok EPERM ok"},
		{"far below a lease", deep, user, 0, "ok EPERM ok"},
		{"a lease in a lease", "/lease/inner/a", user, 0, "EPERM ok ok"},
		{"a lease without devices", "/lease/nothing", 0, 0, "EPERM EPERM ok"},
		{"exempt", "/exempt/a", user, 0, "ok ok ok"},
		{"a lease in an exempt cgroup", "/exempt/lease", user, 0, "ok EPERM ok"},
		{"root of a container", "/box/a", 0, 0, "EPERM EPERM ok"},
		{"a container with a lease", "/box/lease", 0, unix.CLONE_NEWPID, "EPERM ok ok"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := (tree{t, c.root}).opens(test.cgroup, test.uid, test.flags); got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
		})
	}
}

// TestDeepestLevel: an entry on the deepest level that can have one counts, and not only the entry around it.
func TestDeepestLevel(t *testing.T) {
	c := newTree(t)
	deepest := "/outer" + strings.Repeat("/d", MaxLevel-1)
	if !IsSeen(deepest) || IsSeen(deepest+"/d") {
		t.Errorf("%s is on another level than %d", deepest, MaxLevel)
	}
	c.install(c.rules(map[uint64]Entry{c.id("/outer"): {Lease, []Number{zero}}, c.id(deepest): {Lease, []Number{full}}}))
	if got, want := c.opens(deepest+"/main", 4711, 0), "EPERM ok ok"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestBlockDevice: a disk with the number of a guarded device isn't guarded. Majors of drivers are assigned at run
// time, of character and block devices apart.
func TestBlockDevice(t *testing.T) {
	c := newTree(t)
	r := c.rules(nil)
	r.RootAllowed = false
	c.install(r)
	disk := filepath.Join(t.TempDir(), "disk")
	testutil.Must(t, unix.Mknod(disk, unix.S_IFBLK|0o600, int(unix.Mkdev(zero.Major, zero.Minor))))
	if got := c.run("/user", 0, 0, "open", "/dev/zero", disk); !strings.HasPrefix(got, "EPERM ") || strings.HasSuffix(got, " EPERM") {
		t.Errorf("the device and the disk give %s", got)
	}
}

// TestRootDenied: with RootAllowed false root needs a lease too.
func TestRootDenied(t *testing.T) {
	c := newTree(t)
	r := c.rules(map[uint64]Entry{c.id("/lease"): {Lease, []Number{full}}})
	r.RootAllowed = false
	c.install(r)
	if got := c.opens("/user", 0, 0); got != "EPERM EPERM ok" {
		t.Errorf("without a lease: %s", got)
	}
	if got := c.opens("/lease", 0, 0); got != "EPERM ok ok" {
		t.Errorf("with a lease: %s", got)
	}
}

// TestSync: new rules replace the old ones, and a second Install changes only the rules.
func TestSync(t *testing.T) {
	c := newTree(t)
	if _, err := Open(c.root); !errors.Is(err, ErrOff) {
		t.Errorf("before Install: %v", err)
	}
	a, b := c.id("/a"), c.id("/b")
	c.install(c.rules(map[uint64]Entry{a: {Lease, []Number{zero}}}))
	before := c.programs()
	for i, step := range []struct {
		cgroups map[uint64]Entry
		a, b    string
	}{
		{map[uint64]Entry{a: {Lease, []Number{zero}}}, "ok EPERM ok", "EPERM EPERM ok"},
		{map[uint64]Entry{b: {Lease, []Number{zero, full}}}, "EPERM EPERM ok", "ok ok ok"},
		{map[uint64]Entry{a: {Lease, []Number{full}}, b: {Lease, []Number{zero}}}, "EPERM ok ok", "ok EPERM ok"},
		{map[uint64]Entry{a: {Exempt, nil}}, "ok ok ok", "EPERM EPERM ok"},
		{nil, "EPERM EPERM ok", "EPERM EPERM ok"},
	} {
		r := c.rules(step.cgroups)
		if i%2 == 0 {
			g, err := Open(c.root)
			testutil.Must(t, err)
			testutil.Must(t, g.Sync(r))
			have, err := g.Read()
			testutil.Must(t, err)
			if fmt.Sprint(have.Cgroups) != fmt.Sprint(r.Cgroups) || !have.RootAllowed || len(have.Guarded) != 1 || len(have.Open) != 3 {
				t.Errorf("step %d: the rules are %v", i, have)
			}
			testutil.Must(t, g.Close())
		} else {
			testutil.Must(t, Install(c.root, r))
		}
		if got := c.opens("/a", 4711, 0); got != step.a {
			t.Errorf("step %d: a opens %s, want %s", i, got, step.a)
		}
		if got := c.opens("/b", 4711, 0); got != step.b {
			t.Errorf("step %d: b opens %s, want %s", i, got, step.b)
		}
	}
	if after := c.programs(); after != before {
		t.Errorf("the programs were %s, and are %s", before, after)
	}
	testutil.Must(t, Remove(c.root))
	testutil.Must(t, Remove(c.root))
	if got := c.opens("/a", 4711, 0); got != "ok ok ok" {
		t.Errorf("after Remove: %s", got)
	}
}

func (c tree) programs() string {
	c.Helper()
	g, err := Open(c.root)
	testutil.Must(c, err)
	defer g.Close() // only read
	info, err := g.program.Info()
	testutil.Must(c, err)
	id, _ := info.ID()
	return fmt.Sprint(id)
}

// BenchmarkOpen measures what the guard adds to an open of a guarded device, and of other devices.
func BenchmarkOpen(b *testing.B) {
	c := newTree(b)
	id := c.id("/a/b/c/lease")
	for _, guarded := range []bool{false, true} {
		if guarded {
			c.install(c.rules(map[uint64]Entry{id: {Lease, []Number{zero}}}))
		}
		for name, path := range map[string]string{"device": "/dev/zero", "open device": "/dev/random", "file": "/etc/passwd"} {
			b.Run(fmt.Sprintf("%s guard=%v", name, guarded), func(b *testing.B) {
				for b.Loop() {
					var ns float64
					if _, err := fmt.Sscan(c.run("/a/b/c/lease/d", 0, 0, "time", path), &ns); err != nil {
						b.Fatal(err)
					}
					b.ReportMetric(ns, "ns/open")
				}
			})
		}
	}
}
