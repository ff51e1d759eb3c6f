package devices

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/isolation/cgroup"
)

func rulesOfLease() []edits.Rule { return []edits.Rule{denyAll(), allow("c", 195, 3, "rw")} }

// exists reports whether there is a cgroup at path.
func exists(h cgroup.Hierarchy, path string) (bool, error) {
	_, err := os.Stat(filepath.Join(h.Root, path))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// checkOuter checks that the cgroup has complete rules: a process in a child cgroup that has widened
// and removed its own rules gains nothing.
func checkOuter(t *testing.T, h cgroup.Hierarchy, path string) {
	t.Helper()
	inner := fmt.Sprintf("%s/inner-%d", path, counter.Add(1))
	testutil.Must(t, h.Create(inner))
	dir, err := h.Dir(inner)
	testutil.Must(t, err)
	if h.Version == cgroup.V1 {
		for _, line := range []string{"a", "c 195:5 rw", "c *:* rwm"} {
			if err := writeChange(dir, "allow", line); err == nil {
				t.Errorf("%s written", line)
			}
		}
	} else {
		testutil.Must(t, Apply(h, inner, []edits.Rule{allow("a", every, every, "rwm")}))
	}
	all := []question{{"c", 195, 3, "rw"}, {"c", 195, 5, "r"}, {"c", 1, 3, "rw"}, {"c", 195, 5, "m"}}
	p := probe(t, h, inner, all)
	if got := fmt.Sprint(p.ask(t, all)); got != "[true false true true]" {
		t.Errorf("the rules don't hold: %s", got)
	}
	if h.Version == cgroup.V2 {
		testutil.Must(t, detachAll(dir))
		if got := fmt.Sprint(p.ask(t, all)); got != "[true false true true]" {
			t.Errorf("the rules alone don't hold: %s", got)
		}
	}
	testutil.Must(t, h.Kill(t.Context(), inner))
	testutil.Must(t, h.Remove(t.Context(), inner))
}

func TestOuter(t *testing.T) {
	eachTree(t, func(t *testing.T, h cgroup.Hierarchy, path string) {
		outer := path + "/outer"
		for range 2 {
			testutil.Must(t, CreateOuterCgroup(t.Context(), h, outer, rulesOfLease()))
			checkOuter(t, h, outer)
		}
		programs(t, h, outer, 1)
		for range 2 {
			testutil.Must(t, RemoveOuterCgroup(t.Context(), h, outer))
			if there, err := exists(h, outer); there || err != nil {
				t.Errorf("still there: %v", err)
			}
		}
	})
}

// TestOuterInUse: while a process runs in it, the cgroup isn't removed and its rules don't change;
// setting the same rules again is no change.
func TestOuterInUse(t *testing.T) {
	eachTree(t, func(t *testing.T, h cgroup.Hierarchy, path string) {
		testutil.Must(t, CreateOuterCgroup(t.Context(), h, path, rulesOfLease()))
		testutil.Must(t, h.Create(path+"/inner"))
		testutil.Must(t, h.Create(path+"/empty/er"))
		all := []question{{"c", 195, 3, "rw"}, {"c", 195, 5, "r"}}
		p := probe(t, h, path+"/inner", all)
		testutil.Must(t, CreateOuterCgroup(t.Context(), h, path, rulesOfLease()))
		for what, err := range map[string]error{
			"make":   CreateOuterCgroup(t.Context(), h, path, []edits.Rule{denyAll(), allow("c", 195, every, "rw")}),
			"remove": RemoveOuterCgroup(t.Context(), h, path),
		} {
			if !errors.Is(err, ErrInUse) || !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), what+" outer cgroup "+path+": ") {
				t.Errorf("%s: %v", what, err)
			}
		}
		if got := p.ask(t, all); !got[0] || got[1] {
			t.Errorf("%v", got)
		}
		if there, err := exists(h, path+"/empty/er"); !there || err != nil {
			t.Errorf("taken away while in use: %v", err)
		}
		testutil.Must(t, h.Kill(t.Context(), path))
		testutil.Must(t, CreateOuterCgroup(t.Context(), h, path, []edits.Rule{denyAll(), allow("c", 195, 5, "rw")}))
		testutil.Must(t, CreateOuterCgroup(t.Context(), h, path, rulesOfLease()))
		checkOuter(t, h, path)
	})
}

// TestOuterLeftovers: a cgroup that an earlier container left, with children that have no rules,
// becomes an outer cgroup.
func TestOuterLeftovers(t *testing.T) {
	for _, tt := range []struct {
		name  string
		leave func(t *testing.T, h cgroup.Hierarchy, path string)
	}{
		{"a bare cgroup", func(*testing.T, cgroup.Hierarchy, string) {}},
		{"bare children", func(t *testing.T, h cgroup.Hierarchy, path string) { testutil.Must(t, h.Create(path+"/a/b")) }},
		{"other rules", func(t *testing.T, h cgroup.Hierarchy, path string) {
			testutil.Must(t, CreateOuterCgroup(t.Context(), h, path, []edits.Rule{allow("c", 195, 5, "rw")}))
			testutil.Must(t, h.Create(path+"/a/b"))
		}},
		{"a container's rules", func(t *testing.T, h cgroup.Hierarchy, path string) { testutil.Must(t, Apply(h, path, rulesOfLease())) }},
		{"a program that children replace", func(t *testing.T, h cgroup.Hierarchy, path string) {
			if h.Version == cgroup.V1 {
				return
			}
			p, err := Compile(outerRules(rulesOfLease()))
			testutil.Must(t, err)
			l, err := p.loadProgram("other")
			testutil.Must(t, err)
			testutil.Must(t, errors.Join(l.attachTo(int(directory(t, h, path).Fd()), unix.BPF_F_ALLOW_OVERRIDE, 0), l.Close()))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			eachTree(t, func(t *testing.T, h cgroup.Hierarchy, path string) {
				tt.leave(t, h, path)
				testutil.Must(t, CreateOuterCgroup(t.Context(), h, path, rulesOfLease()))
				checkOuter(t, h, path)
			})
		})
	}
}

// TestOuterMakerKilled: wherever the creating process is killed, the next call completes the
// cgroup.
func TestOuterMakerKilled(t *testing.T) {
	eachTree(t, func(t *testing.T, h cgroup.Hierarchy, path string) {
		for n := range 40 {
			cmd := exec.Command("/proc/self/exe", "probe")
			cmd.Stdin = strings.NewReader(strings.Repeat(fmt.Sprintf("outer %s %s\n", h.Mount, path), 1000))
			testutil.Must(t, cmd.Start())
			time.Sleep(time.Duration(n*150) * time.Microsecond)
			testutil.Must(t, cmd.Process.Kill())
			_ = cmd.Wait() // killed
			if n%2 == 0 {
				testutil.Must(t, RemoveOuterCgroup(t.Context(), h, path))
			}
			testutil.Must(t, CreateOuterCgroup(t.Context(), h, path, rulesOfLease()))
			testutil.Must(t, RemoveOuterCgroup(t.Context(), h, path))
		}
		testutil.Must(t, CreateOuterCgroup(t.Context(), h, path, rulesOfLease()))
		checkOuter(t, h, path)
	})
}

// TestOuterAtOnce: concurrent creations and removals of one cgroup exclude each other.
func TestOuterAtOnce(t *testing.T) {
	eachTree(t, func(t *testing.T, h cgroup.Hierarchy, path string) {
		ended := make(chan error)
		for range 3 {
			go func() {
				var err error
				for range 30 {
					err = errors.Join(err, CreateOuterCgroup(t.Context(), h, path, rulesOfLease()), RemoveOuterCgroup(t.Context(), h, path))
				}
				ended <- err
			}()
		}
		for range 3 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		testutil.Must(t, CreateOuterCgroup(t.Context(), h, path, rulesOfLease()))
		checkOuter(t, h, path)
		programs(t, h, path, 1)
	})
}

// TestRemoveOuterInEveryTree: a runtime makes the path in each tree of version 1.
func TestRemoveOuterInEveryTree(t *testing.T) {
	eachTree(t, func(t *testing.T, h cgroup.Hierarchy, path string) {
		all, err := h.ListTrees()
		testutil.Must(t, err)
		for _, tree := range all {
			testutil.Must(t, tree.Create(path+"/inner"))
		}
		testutil.Must(t, CreateOuterCgroup(t.Context(), h, path, rulesOfLease()))
		testutil.Must(t, RemoveOuterCgroup(t.Context(), h, path))
		for _, tree := range all {
			if there, err := exists(tree, path); there || err != nil {
				t.Errorf("still in %s: %v", tree.Root, err)
			}
		}
	})
}

func TestOuterRefuses(t *testing.T) {
	eachTree(t, func(t *testing.T, h cgroup.Hierarchy, path string) {
		for _, bad := range []string{"/", "", "/.", "//", "/a/../..", "relative"} {
			make, remove := CreateOuterCgroup(t.Context(), h, bad, nil), RemoveOuterCgroup(t.Context(), h, bad)
			if !errors.Is(make, cgroup.ErrPath) || !errors.Is(remove, cgroup.ErrPath) {
				t.Errorf("%q: %v, %v", bad, make, remove)
			}
		}
		if err := CreateOuterCgroup(t.Context(), h, path, []edits.Rule{allow("x", 1, 3, "r")}); err == nil || !strings.Contains(err.Error(), path+": allow x 1:3 r: ") {
			t.Errorf("%v", err)
		}
		d := directory(t, h, path)
		testutil.Must(t, lock.TryAcquire(int(d.Fd()), lock.Exclusive))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		// Any user can lock the directory, so the lock has to be another file.
		testutil.Must(t, errors.Join(CreateOuterCgroup(ctx, h, path, nil), RemoveOuterCgroup(ctx, h, path)))
	})
}

// TestLockOfAnotherUser: no user but root can open the file that is locked.
func TestLockOfAnotherUser(t *testing.T) {
	eachTree(t, func(t *testing.T, h cgroup.Hierarchy, path string) {
		dir, err := h.Dir(path)
		testutil.Must(t, err)
		d, err := lockDir(t.Context(), h, dir)
		testutil.Must(t, err)
		defer d.Close()
		if st, err := d.lock.Stat(); err != nil || st.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v, %v", d.lock.Name(), st.Mode(), err)
		}
	})
}

// byHandle opens, by its inode, a directory that isn't below the mount of cgroupfs, and removes the
// rules there.
func byHandle(mount, inode string) error {
	m, err := os.Open(mount)
	if err != nil {
		return err
	}
	defer m.Close()
	var id uint64
	if _, err := fmt.Sscan(inode, &id); err != nil {
		return err
	}
	const fileidKernfs = 0xfe
	fd, err := unix.OpenByHandleAt(int(m.Fd()), unix.NewFileHandle(fileidKernfs, binary.NativeEndian.AppendUint64(nil, id)), unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	list, err := unix.Openat(fd, "devices.allow", unix.O_WRONLY, 0)
	if err != nil {
		return errors.Join(detachFrom(fd), unix.Close(fd))
	}
	_, err = unix.Write(list, []byte("c 195:5 rw"))
	return errors.Join(err, unix.Close(list), unix.Close(fd))
}
