package inject

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/internal/testutil"
)

// stage is a container on its way: a process in a mount namespace in which a root
// file system is mounted on itself, as runtimes have it when they call their hooks.
type stage struct {
	t     *testing.T
	host  string // a directory of the host, with the root in it
	root  string
	pid   int
	rules []edits.Rule
}

// newStage calls prepare with the root before it is mounted. mounts are commands of
// the container's mount namespace, run in the root.
func newStage(t *testing.T, prepare func(root, host string), mounts string) *stage {
	t.Helper()
	testutil.NeedRoot(t)
	s := &stage{t: t, host: t.TempDir()}
	s.root = filepath.Join(s.host, "root")
	for _, dir := range []string{"root/dev", "root/etc", "root/usr/local", "root/proc", "source/lib64", "volume"} {
		testutil.Must(t, os.MkdirAll(filepath.Join(s.host, dir), 0o755))
	}
	testutil.Must(t, os.WriteFile(s.host+"/source/lib64/libcuda.so.1", []byte("driver"), 0o644))
	testutil.Must(t, os.WriteFile(s.host+"/secret", []byte("secret"), 0o644))
	if prepare != nil {
		prepare(s.root, s.host)
	}
	script := "set -e; mount --bind . .; cd $PWD; mount -t tmpfs -o nosuid,mode=755 tmpfs dev; " + mounts + "\necho ready; exec cat"
	cmd := exec.Command("unshare", "--mount", "--propagation", "slave", "sh", "-c", script)
	cmd.Dir = s.root
	in, err := cmd.StdinPipe()
	testutil.Must(t, err)
	out, err := cmd.StdoutPipe()
	testutil.Must(t, err)
	cmd.Stderr = os.Stderr
	testutil.Must(t, cmd.Start())
	t.Cleanup(func() { in.Close(); _ = cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("%q: %v", line, err)
	}
	s.pid = cmd.Process.Pid
	return s
}

func (s *stage) container() Container {
	return Container{PID: s.pid, Root: s.root, Spec: &specs.Spec{}, SetRules: func(r []edits.Rule) error { s.rules = r; return nil }}
}

func (s *stage) apply(e edits.Edits) error { return Apply(s.t.Context(), s.container(), e) }

// run does something in the container's mount namespace, in its root.
func (s *stage) run(line string) string {
	s.t.Helper()
	out, err := exec.Command("nsenter", "--mount", "--target", fmt.Sprint(s.pid), "sh", "-c", "cd "+s.root+"; "+line).CombinedOutput()
	return strings.TrimSpace(fmt.Sprint(string(out), errText(err)))
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// untouched: on the host there is nothing but what was put there.
func (s *stage) untouched() {
	s.t.Helper()
	out, err := exec.Command("find", s.host+"/volume", s.host+"/source", s.host+"/secret", "-printf", "%P %y %s\n").CombinedOutput()
	testutil.Must(s.t, err)
	want := " d 4096\n d 4096\nlib64 d 4096\nlib64/libcuda.so.1 f 6\n f 6\n"
	if strip(string(out)) != strip(want) {
		s.t.Errorf("the host's files are now:\n%s", out)
	}
}

// strip leaves out sizes of directories, which file systems choose.
func strip(list string) string {
	var kept []string
	for line := range strings.Lines(list) {
		if strings.Contains(line, " d ") {
			line, _, _ = strings.Cut(line, " d ")
		}
		kept = append(kept, strings.TrimSpace(line))
	}
	return strings.Join(kept, "\n")
}

func bindOf(source, destination string) specs.Mount {
	return specs.Mount{Destination: destination, Type: "bind", Source: source, Options: []string{"rbind", "ro", "nosuid", "nodev", "rprivate"}}
}

func nullNode(path string) edits.Node {
	return edits.Node{Path: path, Type: "c", Major: 1, Minor: 3, Mode: 0o640, UID: 7, GID: 8, Access: "rw"}
}

func ExampleContainer() {
	c := Container{PID: 1, Root: "/", Spec: &specs.Spec{}}
	late := edits.Hook{Stage: edits.Poststart, Hook: specs.Hook{Path: "/usr/bin/late"}}
	err := Apply(nil, c, edits.Edits{Hooks: []edits.Hook{late}}) //nolint:staticcheck // refused before it counts
	fmt.Println(err)
	// Output: add hook /usr/bin/late: can't be done by a hook, because the runtime has read the spec's hooks
}

func TestApply(t *testing.T) {
	s := newStage(t, func(root, host string) {
		testutil.Must(t, os.WriteFile(root+"/etc/secret", []byte("x"), 0o644))
		testutil.Must(t, os.MkdirAll(root+"/etc/dir/more", 0o755))
	}, "mknod dev/foreign c 1 5; touch bound; mount --bind /dev/full bound")
	testutil.Must(t, s.apply(edits.Edits{
		Nodes:       []edits.Node{nullNode("/dev/a/b/node")},
		RemoveNodes: []string{"/dev/foreign", "/dev/none", "/none/x"}, RemoveMounts: []edits.MountRef{{Destination: "/bound", Source: "/dev/full"}},
		Mounts:      []specs.Mount{bindOf(s.host+"/source", "/usr/local/x/nvidia"), bindOf(s.host+"/source/lib64/libcuda.so.1", "/usr/lib/one")},
		MaskedPaths: []string{"/etc/secret", "/etc/dir", "/etc/none"},
		Rules:       []edits.Rule{{Type: "a", Major: edits.Any, Minor: edits.Any, Access: "rwm"}},
	}))
	want := []edits.Rule{{Type: "a", Major: edits.Any, Minor: edits.Any, Access: "rwm"}, nullNode("/x").Rule()}
	if diff := cmp.Diff(want, s.rules); diff != "" {
		t.Error(diff)
	}
	for line, want := range map[string]string{
		"stat -c '%A %u:%g %t:%T' dev/a/b/node": "crw-r----- 7:8 1:3",
		"ls dev":                                "a",
		"cat usr/local/x/nvidia/lib64/libcuda.so.1 usr/lib/one":            "driverdriver",
		"touch usr/local/x/nvidia/y 2>&1 | grep -c read-only -i":           "1",
		"findmnt -no OPTIONS usr/local/x/nvidia | grep -o ro,nosuid,nodev": "ro,nosuid,nodev",
		"findmnt -no PROPAGATION usr/local/x/nvidia":                       "private",
		"cat etc/secret; ls etc/dir; stat -c %t:%T etc/secret":             "1:3",
		"touch etc/dir/y 2>&1 | grep -c read-only -i":                      "1",
		"stat -c %F bound": "regular empty file",
	} {
		if got := s.run(line); got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
	s.untouched()
	if _, err := os.Stat(s.root + "/dev/a"); err == nil {
		t.Error("the node was made beneath the container's /dev")
	}
}

// TestHostileRoot: whatever is in an image, files of the host stay unchanged and invisible, and edits
// that can't be applied are errors.
func TestHostileRoot(t *testing.T) {
	for _, tt := range []struct {
		name    string
		prepare func(root, host string)
		mounts  string
		edits   func(s *stage) edits.Edits
		err     string // "" if it can be done
		check   string // a command in the root, and
		want    string // what it says
	}{
		{
			name:    "mount point is a link out of the root",
			prepare: func(root, host string) { _ = os.Symlink(host+"/volume", root+"/usr/local/nvidia") },
			edits: func(s *stage) edits.Edits {
				return edits.Edits{Mounts: []specs.Mount{bindOf(s.host+"/source", "/usr/local/nvidia")}}
			},
			err: "usr",
		},
		{
			name: "parent is a link upwards",
			prepare: func(root, _ string) {
				_ = os.Remove(root + "/usr/local")
				_ = os.Symlink("../../../../..", root+"/usr/local")
			},
			edits: func(s *stage) edits.Edits {
				return edits.Edits{Mounts: []specs.Mount{bindOf(s.host+"/source", "/usr/local/nvidia")}}
			},
			check: "cat nvidia/lib64/libcuda.so.1", want: "driver",
		},
		{
			name:    "mount point is a file",
			prepare: func(root, _ string) { _ = os.WriteFile(root+"/usr/local/nvidia", nil, 0o644) },
			edits: func(s *stage) edits.Edits {
				return edits.Edits{Mounts: []specs.Mount{bindOf(s.host+"/source", "/usr/local/nvidia")}}
			},
			err: "directory where a file",
		},
		{
			name:   "mount point in a volume of the host",
			mounts: "mount --bind ../volume usr/local",
			edits: func(s *stage) edits.Edits {
				return edits.Edits{Mounts: []specs.Mount{bindOf(s.host+"/source", "/usr/local/nvidia")}}
			},
			err: "file system of the host",
		},
		{
			name:   "/dev is a directory of the host",
			mounts: "umount dev; mount --bind ../volume dev",
			edits:  func(s *stage) edits.Edits { return edits.Edits{Nodes: []edits.Node{nullNode("/dev/nvidia0")}} },
			err:    "file system of the host",
		},
		{
			name: "/dev is the host's, and has the node",
			prepare: func(_, host string) {
				for i, name := range []string{"null", "zero"} {
					testutil.Must(t, unix.Mknod(host+"/volume/"+name, unix.S_IFCHR|0o666, int(unix.Mkdev(1, uint32(3+2*i)))))
				}
			},
			mounts: "umount dev; mount --bind ../volume dev",
			edits: func(*stage) edits.Edits {
				return edits.Edits{Nodes: []edits.Node{nullNode("/dev/null")}, RemoveNodes: []string{"/dev/zero"}}
			},
			// Then they go, for what is on the host is looked at.
			check: "stat -c %t:%T ../volume/null ../volume/zero | tr '\\n' ' '; rm ../volume/*", want: "1:3 1:5",
		},
		{
			name:   "/dev is a link",
			mounts: "umount dev; rmdir dev; ln -s ../volume dev",
			edits:  func(*stage) edits.Edits { return edits.Edits{Nodes: []edits.Node{nullNode("/dev/nvidia0")}} },
			err:    "dev",
		},
		{
			name:   "the node's place is a link",
			mounts: "ln -s $PWD/../secret dev/nvidia0; ln -s null dev/nvidia1; touch dev/nvidia2; mknod dev/nvidia3 c 1 5; mkfifo dev/nvidia4",
			edits: func(*stage) edits.Edits {
				return edits.Edits{Nodes: []edits.Node{nullNode("/dev/nvidia0"), nullNode("/dev/nvidia1"), nullNode("/dev/nvidia2"), nullNode("/dev/nvidia3"), nullNode("/dev/nvidia4")}}
			},
			check: "stat -c '%F %t:%T' dev/* | sort | uniq -c | tr -s ' '", want: "5 character special file 1:3",
		},
		{
			name:   "the node's place is a directory",
			mounts: "mkdir dev/nvidia0",
			edits:  func(*stage) edits.Edits { return edits.Edits{Nodes: []edits.Node{nullNode("/dev/nvidia0")}} },
			err:    "nvidia0",
		},
		{
			name:   "the node's place is a mount",
			mounts: "touch dev/nvidia0; mount --bind /dev/zero dev/nvidia0",
			edits:  func(*stage) edits.Edits { return edits.Edits{Nodes: []edits.Node{nullNode("/dev/nvidia0")}} },
			err:    "something else is mounted there",
		},
		{
			name:   "what is to be unmounted isn't",
			mounts: "ln -s / away",
			edits: func(*stage) edits.Edits {
				return edits.Edits{RemoveMounts: []edits.MountRef{{Destination: "/away", Source: "/dev/zero"}}}
			},
			err: "nothing is mounted there but the root",
		},
		{
			name:   "what is to be unmounted is gone already",
			mounts: "touch node",
			edits: func(*stage) edits.Edits {
				return edits.Edits{RemoveMounts: []edits.MountRef{{Destination: "/node", Source: "/dev/zero"}}}
			},
			check: "stat -c %F node", want: "regular empty file",
		},
		{
			name:   "what is to be unmounted is something else",
			mounts: "mount --bind ../volume etc",
			edits: func(*stage) edits.Edits {
				return edits.Edits{RemoveMounts: []edits.MountRef{{Destination: "/etc", Source: "/dev/zero"}}}
			},
			err: "not a mount of /dev/zero",
		},
		{
			name:    "mask of a link out of the root",
			prepare: func(root, host string) { _ = os.Symlink(host+"/secret", root+"/etc/x") },
			edits:   func(*stage) edits.Edits { return edits.Edits{MaskedPaths: []string{"/etc/x"}} },
			check:   "cat ../secret", want: "secret",
		},
		{
			name: "an option that no bind has",
			edits: func(s *stage) edits.Edits {
				m := bindOf(s.host, "/x")
				m.Options = append(m.Options, "data=x")
				return edits.Edits{Mounts: []specs.Mount{m}}
			},
			err: "can't be done by a hook",
		},
		{
			name:  "a source that isn't there",
			edits: func(s *stage) edits.Edits { return edits.Edits{Mounts: []specs.Mount{bindOf(s.host+"/none", "/x")}} },
			err:   "clone mount",
		},
		{
			name: "a hook",
			edits: func(*stage) edits.Edits {
				return edits.Edits{Hooks: []edits.Hook{{Stage: edits.Poststart, Hook: specs.Hook{Path: "/x"}}}}
			},
			err: "can't be done by a hook",
		},
	} {
		for way, apply := range map[string]func(*stage, edits.Edits) error{"from outside": (*stage).apply, "from inside": (*stage).applyInside} {
			t.Run(tt.name+"/"+way, func(t *testing.T) {
				s := newStage(t, tt.prepare, tt.mounts)
				err := apply(s, tt.edits(s))
				if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
					t.Errorf("error %v, want %q", err, tt.err)
				}
				if tt.check != "" {
					if got := s.run(tt.check); got != tt.want {
						t.Errorf("%s: %q, want %q", tt.check, got, tt.want)
					}
				}
				s.untouched()
			})
		}
	}
}

// TestSwappedLink: while a link in the image is swapped all the time, no edit is applied outside of
// the root.
func TestSwappedLink(t *testing.T) {
	s := newStage(t, func(root, host string) {
		testutil.Must(t, os.MkdirAll(root+"/good", 0o755))
		testutil.Must(t, os.Symlink(host+"/volume", root+"/bad"))
		testutil.Must(t, os.Symlink("good", root+"/place"))
	}, "")
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; !stop.Load(); i++ {
			target := []string{"good", s.host + "/volume", "../volume", "/etc"}[i%4]
			_ = os.Remove(s.root + "/next")
			_ = os.Symlink(target, s.root+"/next")
			_ = os.Rename(s.root+"/next", s.root+"/place")
		}
	}()
	for i := range 300 {
		_ = s.apply(edits.Edits{
			Nodes:  []edits.Node{nullNode(fmt.Sprintf("/place/n%d", i))},
			Mounts: []specs.Mount{bindOf(s.host+"/source", fmt.Sprintf("/place/d%d/x", i))},
		})
	}
	stop.Store(true)
	<-done
	s.untouched()
}

func TestRefusedContainers(t *testing.T) {
	s := newStage(t, nil, "")
	own := exec.Command("sleep", "1000")
	testutil.Must(t, own.Start())
	t.Cleanup(func() { _ = own.Process.Kill(); _ = own.Wait() })
	for name, tt := range map[string]struct {
		change func(*Container)
		err    string
	}{
		"the host's mounts":         {func(c *Container) { c.PID = own.Process.Pid }, "no mount namespace of its own"},
		"no process":                {func(c *Container) { c.PID = 1 << 22 }, "process"},
		"a root that isn't there":   {func(c *Container) { c.Root = s.host + "/none" }, "open root"},
		"a root that isn't mounted": {func(c *Container) { c.Root = s.host + "/volume" }, "isn't mounted"},
		"rules that can't be set":   {func(c *Container) { c.SetRules = func([]edits.Rule) error { return errors.New("no rules") } }, "no rules"},
	} {
		t.Run(name, func(t *testing.T) {
			c := s.container()
			tt.change(&c)
			err := Apply(t.Context(), c, edits.Edits{Nodes: []edits.Node{nullNode("/dev/x")}})
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error %v, want %q", err, tt.err)
			}
			if got := s.run("ls dev"); got != "" {
				t.Errorf("in /dev: %s", got)
			}
		})
	}
}

// TestLimits: a limit is set unless the spec sets it too.
func TestLimits(t *testing.T) {
	s := newStage(t, nil, "")
	c := s.container()
	c.Spec.Process = &specs.Process{Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_CORE"}}}
	testutil.Must(t, Apply(t.Context(), c, edits.Edits{Rlimits: []specs.POSIXRlimit{
		{Type: "RLIMIT_NOFILE", Soft: 77, Hard: 88}, {Type: "RLIMIT_CORE", Soft: 1, Hard: 1},
	}}))
	var files, core unix.Rlimit
	testutil.Must(t, unix.Prlimit(s.pid, unix.RLIMIT_NOFILE, nil, &files))
	testutil.Must(t, unix.Prlimit(s.pid, unix.RLIMIT_CORE, nil, &core))
	if files != (unix.Rlimit{Cur: 77, Max: 88}) || core.Max == 1 {
		t.Errorf("files %+v, core %+v", files, core)
	}
	if err := Apply(t.Context(), c, edits.Edits{Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_HOPE"}}}); err == nil {
		t.Error("an unknown limit is no error")
	}
}

// TestNetDevices: network devices are moved last, and never into the host's network namespace.
func TestNetDevices(t *testing.T) {
	s := newStage(t, nil, "")
	err := s.apply(edits.Edits{Nodes: []edits.Node{nullNode("/dev/x")}, NetDevices: map[string]string{"enp9": "eth1"}})
	if want := "network device enp9: the container has the host's network namespace, and none of its own"; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	if got := s.run("ls dev"); got != "x" {
		t.Errorf("in /dev: %s", got)
	}
}

// TestThreadEnds: no thread of this process stays in the container's namespaces.
func TestThreadEnds(t *testing.T) {
	s := newStage(t, nil, "")
	testutil.Must(t, s.apply(edits.Edits{Nodes: []edits.Node{nullNode("/dev/x")}}))
	own, err := os.Readlink("/proc/self/ns/mnt")
	testutil.Must(t, err)
	for range 100 {
		threads, err := filepath.Glob("/proc/self/task/*/ns/mnt")
		testutil.Must(t, err)
		inside := 0
		for _, path := range threads {
			if ns, err := os.Readlink(path); err == nil && ns != own {
				inside++
			}
		}
		if inside == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("a thread is still in the container's mount namespace")
}
