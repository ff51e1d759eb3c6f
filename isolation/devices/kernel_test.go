package devices

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/isolation/cgroup"
)

// TestMain lets the test binary be a process in a cgroup or a container that executes commands.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "probe" {
		executeCommands()
		return
	}
	os.Exit(m.Run())
}

// executeCommands executes the commands that it reads, and prints the result of each.
func executeCommands() {
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		err := command(strings.Fields(in.Text()))
		var errno unix.Errno
		switch {
		case err == nil:
			fmt.Println("ok")
		case errors.As(err, &errno):
			fmt.Println(unix.ErrnoName(errno))
		default:
			fmt.Println(strings.ReplaceAll(err.Error(), "\n", " "))
		}
	}
}

func command(words []string) error {
	switch words[0] {
	case "open":
		return openNode(words[1], words[2])
	case "access":
		return unix.Access(words[1], unix.F_OK)
	case "mknod":
		var major, minor uint32
		if _, err := fmt.Sscanf(words[3], "%d:%d", &major, &minor); err != nil {
			return err
		}
		mode := map[string]uint32{"c": unix.S_IFCHR, "b": unix.S_IFBLK}[words[2]]
		if err := unix.Mknod(words[1], mode|0o666, int(unix.Mkdev(major, minor))); err != nil {
			return err
		}
		return unix.Unlink(words[1])
	case "put":
		f, err := os.OpenFile(words[1], os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.WriteString(strings.Join(words[2:], " "))
		return errors.Join(err, f.Close())
	case "detach":
		return detachAll(words[1])
	case "handle":
		return byHandle(words[1], words[2])
	case "outer":
		h, err := cgroup.Detect(words[1])
		if err != nil {
			return err
		}
		return CreateOuterCgroup(context.Background(), h, words[2], rulesOfLease())
	case "mount":
		return unix.Mount("none", words[2], words[1], 0, strings.Join(words[3:], ","))
	}
	return fmt.Errorf("unknown command %q", words)
}

func openNode(path, access string) error {
	flags := map[string]int{"r": unix.O_RDONLY, "w": unix.O_WRONLY, "rw": unix.O_RDWR}[access]
	fd, err := unix.Open(path, flags|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// detachAll detaches every device program of the cgroup of a directory, as a container with
// CAP_SYS_ADMIN can do to its own.
func detachAll(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return detachFrom(int(d.Fd()))
}

func detachFrom(fd int) error {
	ids, _, err := queryPrograms(fd)
	if err != nil {
		return err
	}
	if len(ids) == 0 {
		return errors.New("nothing to detach")
	}
	return loaded{}.detachOthers(fd, ids)
}

// trees returns one tree of each version that the machine has.
func trees(t *testing.T) []cgroup.Hierarchy {
	t.Helper()
	testutil.NeedRoot(t)
	first, err := cgroup.Detect("")
	if err != nil {
		testutil.SkipOrFail(t, err.Error())
	}
	all := []cgroup.Hierarchy{first}
	if first.Hybrid {
		second, err := cgroup.Detect("/sys/fs/cgroup/unified")
		testutil.Must(t, err)
		all = append(all, second)
	}
	return all
}

var counter atomic.Int32

// eachTree runs the test with the path of a fresh cgroup in each tree.
func eachTree(t *testing.T, test func(t *testing.T, h cgroup.Hierarchy, path string)) {
	for _, h := range trees(t) {
		t.Run(fmt.Sprintf("v%d", h.Version), func(t *testing.T) {
			path := fmt.Sprintf("/berth-devices-%d-%d", os.Getpid(), counter.Add(1))
			testutil.Must(t, h.Create(path))
			t.Cleanup(func() { clear(t, h, path) })
			test(t, h, path)
		})
	}
}

func clear(t *testing.T, h cgroup.Hierarchy, path string) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	all, err := h.ListTrees()
	for _, tree := range all {
		err = errors.Join(err, tree.Kill(ctx, path), tree.Remove(ctx, path))
	}
	if err != nil {
		t.Error(err)
	}
}

// prober is a process in a cgroup, with a node of each device.
type prober struct {
	nodes string
	in    io.Writer
	out   *bufio.Scanner
	pid   int
}

func probe(t *testing.T, h cgroup.Hierarchy, path string, all []question) *prober {
	t.Helper()
	p := &prober{nodes: t.TempDir()}
	for _, q := range all {
		mode := map[string]uint32{"c": unix.S_IFCHR, "b": unix.S_IFBLK}[q.kind]
		err := unix.Mknod(p.node(q), mode|0o666, int(unix.Mkdev(uint32(q.major), uint32(q.minor))))
		if !errors.Is(err, unix.EEXIST) {
			testutil.Must(t, err)
		}
	}
	cmd := exec.Command("/proc/self/exe", "probe")
	in, err := cmd.StdinPipe()
	testutil.Must(t, err)
	out, err := cmd.StdoutPipe()
	testutil.Must(t, err)
	cmd.Stderr = os.Stderr
	testutil.Must(t, cmd.Start())
	p.in, p.out, p.pid = in, bufio.NewScanner(out), cmd.Process.Pid
	t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	testutil.Must(t, h.Join(path, p.pid))
	return p
}

func (p *prober) node(q question) string {
	return filepath.Join(p.nodes, fmt.Sprintf("%s%d:%d", q.kind, q.major, q.minor))
}

// ask returns for each question whether the rules allowed the access. An open that the rules allow
// may still fail, because most of these devices have no driver.
func (p *prober) ask(t interface{ Fatal(...any) }, all []question) []bool {
	var text strings.Builder
	for _, q := range all {
		switch q.access {
		case "m":
			fmt.Fprintf(&text, "mknod %s/made %s %d:%d\n", p.nodes, q.kind, q.major, q.minor)
		case "":
			fmt.Fprintf(&text, "access %s\n", p.node(q))
		default:
			fmt.Fprintf(&text, "open %s %s\n", p.node(q), q.access)
		}
	}
	go io.WriteString(p.in, text.String())
	var answers []bool
	for range all {
		if !p.out.Scan() {
			t.Fatal("the probe ended:", p.out.Err())
		}
		answers = append(answers, p.out.Text() != "EPERM")
	}
	return answers
}

func answers(accesses ...string) []question {
	return questions([]int64{195, 508, 1}, []int64{3, 5}, accesses)
}

// TestKernelAgreesWithAllowed: the kernel allows a process exactly what the rules mean, for random
// lists that replace each other on a live cgroup.
func TestKernelAgreesWithAllowed(t *testing.T) {
	eachTree(t, func(t *testing.T, h cgroup.Hierarchy, path string) {
		all := answers("r", "w", "m", "rw")
		p := probe(t, h, path, all)
		rapid.Check(t, func(t *rapid.T) {
			rules := rapid.SliceOfN(drawRule([]int64{195, 508}, []int64{3, 5}), 0, 10).Draw(t, "rules")
			want := func(q question) bool { return Allowed(rules, q.kind, q.major, q.minor, q.access) }
			err := setRules(h, path, rules)
			if h.Version == cgroup.V1 {
				l, unsayable := reduceRules(rules)
				if unsayable != nil {
					if err == nil {
						t.Fatalf("set %s without an error", describeRules(rules))
					}
					return
				}
				want = l.allowedByKernel
			}
			if err != nil {
				t.Fatal(err)
			}
			for i, got := range p.ask(t, all) {
				if got != want(all[i]) {
					t.Fatalf("%+v: the kernel says %v: %s", all[i], got, describeRules(rules))
				}
			}
		})
	})
}

// TestApply sets the rules and the defaults; a second call changes nothing. A process inside never
// loses a device that both lists allow.
func TestApply(t *testing.T) {
	eachTree(t, func(t *testing.T, h cgroup.Hierarchy, path string) {
		all := []question{
			{"c", 195, 3, "rw"},
			{"c", 195, 5, "r"},
			{"c", 1, 3, "rw"},
			{"c", 195, 5, "m"},
			{"c", 508, 3, "rw"},
			{"b", 195, 3, "r"},
			{"c", 1, 3, ""},
		}
		p := probe(t, h, path, all)
		for _, tt := range []struct {
			name  string
			rules []edits.Rule
			want  []bool
		}{
			{"one", []edits.Rule{denyAll(), allow("c", 195, 3, "rw")}, []bool{true, false, true, true, false, false, true}},
			{"again", []edits.Rule{denyAll(), allow("c", 195, 3, "rw")}, []bool{true, false, true, true, false, false, true}},
			{"another", []edits.Rule{denyAll(), allow("c", 195, 5, "r"), allow("c", 508, every, "rw")}, []bool{false, true, true, true, true, false, true}},
			{"all", []edits.Rule{allow("a", every, every, "rwm")}, []bool{true, true, true, true, true, true, true}},
			{"none", nil, []bool{false, false, true, true, false, false, true}},
		} {
			testutil.Must(t, Apply(h, path, tt.rules))
			for i, got := range p.ask(t, all) {
				if got != tt.want[i] {
					t.Errorf("%s: %+v: %v", tt.name, all[i], got)
				}
			}
			programs(t, h, path, 1)
		}
	})
}

// programs counts the programs of the cgroup itself.
func programs(t *testing.T, h cgroup.Hierarchy, path string, want int) {
	t.Helper()
	if h.Version == cgroup.V1 {
		return
	}
	d := directory(t, h, path)
	ids, _, err := queryPrograms(int(d.Fd()))
	if err != nil || len(ids) != want {
		t.Errorf("programs %v, %v; want %d", ids, err, want)
	}
}

func directory(t *testing.T, h cgroup.Hierarchy, path string) *os.File {
	t.Helper()
	dir, err := h.Dir(path)
	testutil.Must(t, err)
	d, err := os.Open(dir)
	testutil.Must(t, err)
	t.Cleanup(func() { d.Close() })
	return d
}

// TestApplyTakesOver: one program replaces those of runtime and systemd, however they were
// attached.
func TestApplyTakesOver(t *testing.T) {
	for _, tt := range []struct {
		name  string
		flags uint32
		count int
	}{
		{"none", unix.BPF_F_ALLOW_MULTI, 0},
		{"one", unix.BPF_F_ALLOW_MULTI, 1},
		{"runtime and systemd", unix.BPF_F_ALLOW_MULTI, 2},
		{"several", unix.BPF_F_ALLOW_MULTI, 5},
		{"overridable", unix.BPF_F_ALLOW_OVERRIDE, 1},
		{"exclusive", 0, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			eachTree(t, func(t *testing.T, h cgroup.Hierarchy, path string) {
				if h.Version == cgroup.V1 {
					return
				}
				d := directory(t, h, path)
				for i := range tt.count {
					p, err := Compile([]edits.Rule{denyAll(), allow("c", 1, int64(i), "r")})
					testutil.Must(t, err)
					l, err := p.loadProgram("other")
					testutil.Must(t, err)
					testutil.Must(t, errors.Join(l.attachTo(int(d.Fd()), tt.flags, 0), l.Close()))
				}
				for range 2 {
					testutil.Must(t, Apply(h, path, []edits.Rule{denyAll(), allow("c", 195, 3, "rw")}))
					programs(t, h, path, 1)
				}
				all := []question{{"c", 195, 3, "rw"}, {"c", 195, 5, "r"}, {"c", 1, 3, "rw"}}
				p := probe(t, h, path, all)
				if got := p.ask(t, all); !got[0] || got[1] || !got[2] {
					t.Errorf("%v", got)
				}
			})
		})
	}
}

// TestNeverWiderThanBefore: while lists change from one to another, a device that
// neither allows is never open, and one that both allow is never closed.
func TestNeverWiderThanBefore(t *testing.T) {
	eachTree(t, func(t *testing.T, h cgroup.Hierarchy, path string) {
		all := []question{{"c", 195, 5, "r"}, {"c", 1, 3, "rw"}, {"c", 1, 5, "r"}}
		p := probe(t, h, path, all)
		lists := [][]edits.Rule{
			{denyAll(), allow("c", 195, 3, "rw"), allow("c", 508, every, "rw")},
			{denyAll(), allow("c", 195, 4, "rw"), allow("c", 10, every, "rwm")},
			{denyAll(), allow("c", 195, 3, "r"), allow("c", 195, 4, "w")},
		}
		testutil.Must(t, Apply(h, path, lists[0]))
		stop, stopped := make(chan struct{}), make(chan error)
		go func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					stopped <- nil
					return
				default:
				}
				if err := Apply(h, path, lists[i%len(lists)]); err != nil {
					stopped <- err
					return
				}
			}
		}()
		for range 500 {
			if got := p.ask(t, all); got[0] || !got[1] || !got[2] {
				t.Errorf("%v", got)
				break
			}
		}
		close(stop)
		testutil.Must(t, <-stopped)
	})
}

// TestApplyAtOnce: concurrent calls leave one program.
func TestApplyAtOnce(t *testing.T) {
	eachTree(t, func(t *testing.T, h cgroup.Hierarchy, path string) {
		if h.Version == cgroup.V1 {
			return
		}
		testutil.Must(t, Apply(h, path, nil))
		ended := make(chan error)
		for n := range 4 {
			go func() {
				var err error
				for i := range 50 {
					err = errors.Join(err, Apply(h, path, []edits.Rule{allow("c", int64(n), int64(i), "r")}))
				}
				ended <- err
			}()
		}
		for range 4 {
			testutil.Must(t, <-ended)
		}
		programs(t, h, path, 1)
	})
}

func TestApplyErrors(t *testing.T) {
	eachTree(t, func(t *testing.T, h cgroup.Hierarchy, path string) {
		wants := map[string][]edits.Rule{"set device rules of cgroup " + path + `: allow c 1:3 x: access "x"`: {allow("c", 1, 3, "x")}}
		if h.Version == cgroup.V1 {
			testutil.Must(t, Apply(h, path, []edits.Rule{denyAll(), allow("c", 195, 3, "r")}))
			wants["set device rules of cgroup "+path+": deny c 195:3 r: it denies a part of the rule allow c 195:* r"] = []edits.Rule{allow("c", 195, every, "r"), deny("c", 195, 3, "r")}
			testutil.Must(t, h.Create(path+"/child"))
			child := []edits.Rule{denyAll(), allow("c", 195, 4, "rw")}
			if err := Apply(h, path+"/child", child); !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), path+"/child: allow c 195:4 rw: ") {
				t.Errorf("more than the parent has: %v", err)
			}
		}
		for want, rules := range wants {
			if err := Apply(h, path, rules); err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("got %v, want %s", err, want)
			}
		}
		if err := Apply(h, path+"/none", nil); !errors.Is(err, syscall.ENOENT) || !strings.Contains(err.Error(), path+"/none") {
			t.Errorf("no such cgroup: %v", err)
		}
		if err := Apply(h, "/a/../..", nil); !errors.Is(err, cgroup.ErrPath) {
			t.Errorf("a path that leads out: %v", err)
		}
	})
}

// BenchmarkApply measures a live cgroup of version 2; a node with one GPU has about thirty rules.
func BenchmarkApply(b *testing.B) {
	h, err := cgroup.Detect("/sys/fs/cgroup/unified")
	if err != nil || os.Geteuid() != 0 {
		b.Skip("needs root and cgroup v2 at its hybrid place")
	}
	path := fmt.Sprintf("/berth-devices-bench-%d", os.Getpid())
	testutil.Must(b, h.Create(path))
	b.Cleanup(func() { testutil.Must(b, h.Remove(context.Background(), path)) })
	for _, n := range []int64{1, 30, 255} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			rules := []edits.Rule{denyAll()}
			for i := range n {
				rules = append(rules, allow("c", 195+i%7, i, "rw"))
			}
			for b.Loop() {
				testutil.Must(b, Apply(h, path, rules))
			}
		})
	}
}
