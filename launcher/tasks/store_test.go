package tasks

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
)

// makeTask makes the directory of a task.
func makeTask(t *testing.T, s Store, id string) {
	t.Helper()
	if err := os.MkdirAll(s.Dir(id), 0o700); err != nil {
		t.Fatal(err)
	}
}

// put makes a task of this boot that a process that lives is making.
func put(t *testing.T, s Store, id, name string, age time.Duration) {
	t.Helper()
	makeTask(t, s, id)
	self, err1 := s.Self()
	boot, err2 := s.BootID()
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	err := s.WriteRecord(Record{ID: id, Name: name, Maker: self, BootID: boot, Created: time.Now().Add(-age), Cgroup: "/berth-none/" + id})
	if err != nil {
		t.Fatal(err)
	}
	if name != id {
		if err := s.ClaimName(name, id); err != nil {
			t.Fatal(err)
		}
	}
}

const (
	idA = "aaaaaaaaaaaa"
	idB = "aaaabbbbbbbb"
	idC = "cccccccccccc"
)

func TestFind(t *testing.T) {
	s := Store{Data: t.TempDir()}
	if _, err := s.Find("x"); !errors.Is(err, ErrNotFound) {
		t.Errorf("without any task: %v", err)
	}
	put(t, s, idA, "train", 0)
	put(t, s, idB, "cc", 0)
	put(t, s, idC, idA[:6], 0) // called as another one's id begins
	makeTask(t, s, "dddddddddddd")
	for _, tt := range []struct{ name, word, want, err string }{
		{name: "id", word: idA, want: idA},
		{name: "name", word: "train", want: idA},
		{name: "part of an id", word: "aaaab", want: idB},
		{name: "a name before a part of an id", word: "cc", want: idB},
		{name: "a name before an other's id", word: "aaaaaa", want: idC},
		{name: "several", word: "aaaa", err: `task "aaaa": several tasks begin so: aaaaaaaaaaaa, aaaabbbbbbbb; give more of the id`},
		{name: "part of a name", word: "trai", err: `task "trai": there is no such task (did you mean train?)`},
		{name: "none", word: "notebook", err: `task "notebook": there is no such task`},
		{name: "nothing", word: "", err: `task "": there is no such task`},
		{name: "a path", word: "../names", err: `task "../names": there is no such task`},
		{name: "being made or removed", word: "dddddddddddd", err: `task "dddddddddddd": there is no such task`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := s.Find(tt.word)
			if tt.err == "" {
				tt.err = "<nil>"
			}
			if got.ID != tt.want || fmt.Sprint(err) != tt.err {
				t.Errorf("found %q, %v, want %q, %s", got.ID, err, tt.want, tt.err)
			}
		})
	}
}

func TestList(t *testing.T) {
	s := Store{Data: t.TempDir()}
	if all, err := s.List(); len(all) != 0 || err != nil {
		t.Errorf("without any task: %v, %v", all, err)
	}
	put(t, s, idA, idA, time.Hour)
	put(t, s, idB, idB, 0)
	makeTask(t, s, idC) // being made
	makeTask(t, s, "not-an-id")
	put(t, s, "dddddddddddd", "dddddddddddd", 0)
	if err := os.WriteFile(s.Path("dddddddddddd", recordFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := s.List()
	var ids []string
	for _, task := range all {
		ids = append(ids, task.ID+" "+string(task.State))
	}
	if diff := cmp.Diff([]string{idB + " created", idA + " created", "dddddddddddd broken"}, ids); diff != "" || err != nil {
		t.Error(err, diff)
	}
}

func TestClaim(t *testing.T) {
	s := Store{Data: t.TempDir()}
	put(t, s, idA, "train", 0)
	makeTask(t, s, idB)
	if err := s.ClaimName("train", idA); err != nil {
		t.Errorf("claiming twice: %v", err)
	}
	if err := s.ClaimName("train", idB); !errors.Is(err, ErrNameTaken) || !strings.HasSuffix(err.Error(), "; berth rm -f train ends that task and makes it free") {
		t.Errorf("claiming another's: %v", err)
	}
	if err := s.WriteExit(idA, Exit{}); err != nil {
		t.Fatal(err)
	}
	if err := s.ClaimName("train", idB); !errors.Is(err, ErrNameTaken) || !strings.HasSuffix(err.Error(), "; berth rm train makes it free") {
		t.Errorf("claiming one's that has ended: %v", err)
	}
	if err := s.ReleaseName("train", idB); err != nil || s.IDByName("train") != idA {
		t.Errorf("giving back another's: %v, now %q has it", err, s.IDByName("train"))
	}
	// A task that was removed by force leaves a claim that doesn't count.
	if err := os.RemoveAll(s.Dir(idA)); err != nil {
		t.Fatal(err)
	}
	if err := s.ClaimName("train", idB); err != nil || s.IDByName("train") != idB {
		t.Errorf("claiming a dead one's: %v, now %q has it", err, s.IDByName("train"))
	}
	if err := s.Remove(idB); err != nil { // its record was never written
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(s.Data, "*", "*")); len(left) > 0 {
		t.Errorf("left %q", left)
	}
}

// Of many that want one name, one gets it.
func TestClaimNameRace(t *testing.T) {
	s := Store{Data: t.TempDir()}
	makeTask(t, s, idC)
	if err := s.ClaimName("train", idC); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(s.Dir(idC)); err != nil { // all find a stale claim
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	errs := make([]error, 32)
	for n := range errs {
		id := fmt.Sprintf("%012x", n)
		makeTask(t, s, id)
		wg.Go(func() { errs[n] = s.ClaimName("train", id) })
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else if !errors.Is(err, ErrNameTaken) {
			t.Error(err)
		}
	}
	if won != 1 {
		t.Errorf("%d have the name", won)
	}
}

func TestRemove(t *testing.T) {
	s := Store{Data: t.TempDir(), State: t.TempDir()}
	put(t, s, idA, "train", 0)
	if err := os.MkdirAll(s.Path(idA, "upper/a/b"), 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 { // removing what is gone is no error
		if err := s.Remove(idA); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Task(idA); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the task is still there: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(s.Data, "*", "*")); len(left) > 0 {
		t.Errorf("left %q", left)
	}
}

// The name is removed before the directory: a process killed in between leaves a directory, which a
// sweep finds.
func TestRemoveOrder(t *testing.T) {
	s := Store{Data: t.TempDir(), State: t.TempDir()}
	put(t, s, idA, "train", 0)
	held, err := s.lockNames() // Remove waits for it when it is about to remove the name
	if err != nil {
		t.Fatal(err)
	}
	removed := make(chan error, 1)
	go func() { removed <- s.Remove(idA) }()
	for _, err := os.Lstat(s.Path(idA, recordFile)); err == nil; _, err = os.Lstat(s.Path(idA, recordFile)) {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(20 * time.Millisecond)
	if _, err := os.Lstat(s.Dir(idA)); err != nil {
		t.Errorf("the directory is gone before the name: %v", err)
	}
	if err := errors.Join(held.Close(), <-removed); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(s.Data, "*", "*")); len(left) > 0 {
		t.Errorf("left %q", left)
	}
}

// What is mounted as a task's root is never emptied.
func TestRemoveMounted(t *testing.T) {
	testutil.NeedRoot(t)
	s := Store{Data: t.TempDir(), State: t.TempDir()}
	image := t.TempDir() // on the same file system
	if err := os.WriteFile(filepath.Join(image, "precious"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	put(t, s, idA, idA, 0)
	root := s.Path(idA, "rootfs")
	if err := errors.Join(os.Mkdir(root, 0o700), unix.Mount(image, root, "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(idA); !errors.Is(err, unix.EXDEV) {
		t.Errorf("removing it: %v", err)
	}
	if _, err := os.Stat(filepath.Join(image, "precious")); err != nil {
		t.Error(err)
	}
	if err := unix.Unmount(root, 0); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(idA); err != nil {
		t.Error(err)
	}
}

func TestTaskOfThisMachine(t *testing.T) {
	s := Store{Data: t.TempDir()}
	put(t, s, idA, idA, 0)
	self, err := s.Self()
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Record(idA)
	if err != nil {
		t.Fatal(err)
	}
	r.Detached, r.Maker.Start = true, r.Maker.Start+1 // another process had this pid
	life := Life{Init: self, BootID: r.BootID, Monitor: r.Maker}
	for _, step := range []struct {
		name   string
		change func() error
		want   Status
		orphan bool
	}{
		{"its launcher died", func() error { return s.WriteRecord(r) }, Status{State: Lost, Why: "its launcher was killed"}, false},
		{"it runs without a monitor", func() error { return s.WriteLife(idA, life) }, Status{State: Running}, true},
		{"its init is another process now", func() error { life.Init.Start++; return s.WriteLife(idA, life) }, Status{State: Lost, Why: "its monitor was killed, and its processes have ended"}, true},
		{"a monitor came", func() error { life.Monitor = self; return s.WriteLife(idA, life) }, Status{State: Stopping}, false},
		{"the machine was restarted", func() error {
			later := r
			later.BootID = "another"
			life.Monitor.Start++
			return errors.Join(s.WriteRecord(later), s.WriteLife(idA, life))
		}, Status{State: Lost, Why: "the machine was restarted"}, false},
		{"it has ended", func() error { return s.WriteExit(idA, Exit{Code: 3}) }, Status{State: Exited, Code: 3}, false},
	} {
		if err := step.change(); err != nil {
			t.Fatal(step.name, err)
		}
		got, err := s.Task(idA)
		if err != nil || got.Status != step.want || got.Orphan() != step.orphan {
			t.Errorf("%s: %+v, orphan %v, %v, want %+v, %v", step.name, got.Status, got.Orphan(), err, step.want, step.orphan)
		}
	}
	if s.Stopped(idA) {
		t.Error("stopped before anybody asked")
	}
	if err := s.MarkStopped(idA); err != nil || !s.Stopped(idA) {
		t.Errorf("not stopped: %v", err)
	}
}
