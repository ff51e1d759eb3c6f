package image

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/internal/testutil"
)

// TestUse: layers that a process uses aren't pruned while any process has the file of the use open, and its image isn't removed. What ended processes
// leave is removed by the next use.
func TestUse(t *testing.T) {
	s := fillStore(t)
	use := func(name string) *os.File {
		f, err := s.NewUse()
		testutil.Must(t, err)
		img, err := s.Open(t.Context(), name, Search{Pull: Never})
		testutil.Must(t, err)
		defer img.Close()
		layers, err := s.Unpack(t.Context(), img, nil)
		testutil.Must(t, err)
		testutil.Must(t, img.RecordUse(f.Name(), layers))
		return f
	}
	one := use(s.one)
	child := exec.Command("sleep", "1000")
	child.ExtraFiles = []*os.File{use(s.two)}
	testutil.Must(t, child.Start())
	defer func() { _ = child.Wait() }()
	defer func() { _ = child.Process.Kill() }()
	testutil.Must(t, child.ExtraFiles[0].Close())

	done, err := s.Prune(Selection{All: true, Tasks: s.tasks})
	if err != nil || len(done.Names) > 0 || done.Layers != 1 {
		t.Errorf("two images are in use: %+v, %v", done, err)
	}
	testutil.Must(t, one.Close())
	if done, err = s.Prune(Selection{All: true, Tasks: s.tasks}); err != nil || !slices.Equal(done.Names, []string{s.one}) || done.Layers != 1 {
		t.Errorf("a child uses one image: %+v, %v", done, err)
	}
	if got := s.images(t); !slices.Equal(got, []string{s.two}) {
		t.Errorf("images %q are left", got)
	}
	testutil.Must(t, child.Process.Kill())
	_ = child.Wait() // it was killed
	if done, err = s.Prune(Selection{All: true, Tasks: s.tasks}); err != nil || !slices.Equal(done.Names, []string{s.two}) || done.Layers != 2 {
		t.Errorf("nothing is in use: %+v, %v", done, err)
	}
	last, err := s.NewUse()
	testutil.Must(t, err)
	if names, err := smallfile.Names(s.usesDir()); err != nil || !slices.Equal(names, []string{filepath.Base(last.Name())}) {
		t.Errorf("files of uses: %q, %v", names, err)
	}
	testutil.Must(t, last.Close())
}

// TestSweepUses: a new use looks at a bounded number of files, and Prune removes all leftovers. A file of a use that is too large is an error.
func TestSweepUses(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	testutil.Must(t, os.Mkdir(s.usesDir(), 0o700))
	for i := range 3 * maxSwept {
		testutil.Must(t, os.WriteFile(filepath.Join(s.usesDir(), fmt.Sprint(i)), nil, 0o600))
	}
	f, err := s.NewUse()
	testutil.Must(t, err)
	defer f.Close()
	if names, err := smallfile.Names(s.usesDir()); err != nil || len(names) != 2*maxSwept+1 {
		t.Errorf("%d files are left: %v", len(names), err)
	}
	for _, tt := range []struct {
		dry  bool
		want int
	}{{true, 2*maxSwept + 1}, {false, 1}} {
		_, err := s.Prune(Selection{Tasks: t.TempDir(), DryRun: tt.dry})
		testutil.Must(t, err)
		if names, err := smallfile.Names(s.usesDir()); err != nil || len(names) != tt.want {
			t.Errorf("dry %v: %d files are left: %v", tt.dry, len(names), err)
		}
	}
	testutil.Must(t, os.WriteFile(f.Name(), make([]byte, maxUse+1), 0o600))
	if _, err := s.Prune(Selection{Tasks: t.TempDir()}); !errors.Is(err, smallfile.ErrTooLarge) {
		t.Errorf("a large file: %v", err)
	}
}

// TestStores: an image in two stores is listed once and removed from both, and a name that is in none is an error.
func TestStores(t *testing.T) {
	a := fillStore(t)
	b := Store{Dir: t.TempDir()}
	_, err := pullAndUnpack(t, b, a.one, Search{})
	testutil.Must(t, err)
	all := Stores{a.Store, b}
	list, err := all.List()
	if err != nil || len(list) != 2 {
		t.Errorf("%d images: %v", len(list), err)
	}
	if got, want := all.Size(), a.Size()+b.Size(); got != want || b.Size() == 0 {
		t.Errorf("size %d, want %d", got, want)
	}
	done, err := all.Prune(Selection{Names: []string{a.one, a.two}, Tasks: a.tasks})
	if err != nil || len(done.Names) != 2 || done.Layers != 5 {
		t.Errorf("remove both: %+v, %v", done, err)
	}
	if list, err = all.List(); err != nil || len(list) != 0 {
		t.Errorf("%d images are left: %v", len(list), err)
	}
	if _, err = all.Prune(Selection{Names: []string{a.one}, Tasks: a.tasks}); err == nil {
		t.Error("an image that is nowhere is removed")
	}
}
