package view

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/testutil"
)

func sample() Tree {
	return Tree{
		Dirs:  []string{"empty", "a/deep/one"},
		Files: map[string]string{"a/file": "content", "b.txt": "b"},
		Links: map[string]string{"links/here": "../a/file"},
	}
}

// listing returns kinds, permissions and content of everything below a directory.
func listing(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	testutil.Must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		testutil.Must(t, err)
		name, err := filepath.Rel(dir, path)
		testutil.Must(t, err)
		fi, err := d.Info()
		testutil.Must(t, err)
		all[name] = fi.Mode().String()
		if d.Type().IsRegular() {
			data, err := os.ReadFile(path)
			testutil.Must(t, err)
			all[name] += " " + string(data)
		}
		if d.Type()&fs.ModeSymlink != 0 {
			all[name], err = os.Readlink(path)
			testutil.Must(t, err)
		}
		return nil
	}))
	return all
}

// countingStore is a store that counts the calls of fill.
type countingStore struct {
	Store
	times int
}

func (c *countingStore) get(t *testing.T, key string, devices ...string) string {
	t.Helper()
	path, err := c.Get(key, devices, func() (Tree, error) {
		c.times++
		return sample(), nil
	})
	testutil.Must(t, err)
	return path
}

func newStore(t *testing.T) *countingStore {
	return &countingStore{Store: Store{Dir: filepath.Join(t.TempDir(), "views")}}
}

func TestGet(t *testing.T) {
	s := newStore(t)
	path := s.get(t, "key", "GPU-a")
	if again := s.get(t, "key", "GPU-a"); again != path || s.times != 1 {
		t.Errorf("%s, then %s, made %d times", path, again, s.times)
	}
	dir, file := "drwxr-xr-x", "-r--r--r--"
	want := map[string]string{
		".": dir, "a": dir, "a/deep": dir, "a/deep/one": dir, "a/file": file + " content", "b.txt": file + " b",
		"empty": dir, "links": dir, "links/here": "../a/file",
	}
	if d := cmp.Diff(want, listing(t, path)); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	names, err := os.ReadDir(s.Dir)
	testutil.Must(t, err)
	if len(names) != 1 {
		t.Errorf("left over: %v", names)
	}
}

func TestGetReturnsErrorOfFill(t *testing.T) {
	s := newStore(t)
	want := errors.New("no such GPU")
	if _, err := s.Get("key", nil, func() (Tree, error) { return Tree{}, want }); !errors.Is(err, want) {
		t.Errorf("error %v", err)
	}
}

// After any change by a container the next one gets the original content.
func TestChangedViewIsMadeAnew(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(tree string) error
	}{
		{"written to", func(tree string) error { return overwrite(filepath.Join(tree, "a/file"), "changed") }},
		{"written to, with its times set back", func(tree string) error {
			file := filepath.Join(tree, "a/file")
			fi, err := os.Stat(file)
			return errors.Join(err, overwrite(file, "CONTENT"), os.Chtimes(file, fi.ModTime(), fi.ModTime()))
		}},
		{"added", func(tree string) error { return os.WriteFile(filepath.Join(tree, "empty/new"), nil, 0o600) }},
		{"added to the top", func(tree string) error { return os.Mkdir(filepath.Join(tree, "new"), 0o700) }},
		{"removed", func(tree string) error { return os.Remove(filepath.Join(tree, "b.txt")) }},
		{"all removed", os.RemoveAll},
		{"replaced by a link", func(tree string) error {
			return errors.Join(os.Remove(filepath.Join(tree, "b.txt")), os.Symlink("/etc/passwd", filepath.Join(tree, "b.txt")))
		}},
		{"a link that leads elsewhere", func(tree string) error {
			return errors.Join(os.Remove(filepath.Join(tree, "links/here")), os.Symlink("/etc/passwd", filepath.Join(tree, "links/here")))
		}},
		{"replaced by a directory", func(tree string) error {
			return errors.Join(os.Remove(filepath.Join(tree, "b.txt")), os.Mkdir(filepath.Join(tree, "b.txt"), 0o755))
		}},
		{"mode", func(tree string) error { return os.Chmod(filepath.Join(tree, "b.txt"), 0o666) }},
		{"no seal", func(tree string) error { return os.Remove(filepath.Join(filepath.Dir(tree), sealName)) }},
		{"a file in its place", func(tree string) error {
			return errors.Join(os.RemoveAll(filepath.Dir(tree)), os.WriteFile(filepath.Dir(tree), nil, 0o600))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newStore(t)
			path := s.get(t, "key")
			want := listing(t, path)
			testutil.Must(t, tt.change(path))
			if d := cmp.Diff(want, listing(t, s.get(t, "key"))); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
			if s.times != 2 {
				t.Errorf("made %d times", s.times)
			}
			names, err := os.ReadDir(s.Dir)
			testutil.Must(t, err)
			if len(names) != 1 {
				t.Errorf("left over: %v", names)
			}
		})
	}
}

// overwrite writes into a file whose mode doesn't matter to root.
func overwrite(path, content string) error {
	return errors.Join(os.Chmod(path, 0o600), os.WriteFile(path, []byte(content), 0o600), os.Chmod(path, 0o444))
}

// Concurrent calls each get a complete tree.
func TestGetAtOnce(t *testing.T) {
	s := newStore(t)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 20 {
				path, err := s.Get("key", nil, func() (Tree, error) { return sample(), nil })
				if err != nil {
					t.Error(err)
					return
				}
				if data, err := os.ReadFile(filepath.Join(path, "a/file")); err != nil || string(data) != "content" {
					t.Errorf("%q, %v", data, err)
				}
			}
		})
	}
	wg.Wait()
	names, err := os.ReadDir(s.Dir)
	testutil.Must(t, err)
	if len(names) != 1 {
		t.Errorf("left over: %v", names)
	}
}

// makeUnused makes a directory look unused for long.
func makeUnused(t *testing.T, dir string) {
	t.Helper()
	long := time.Now().Add(-time.Hour)
	if _, err := os.Lstat(filepath.Join(dir, sealName)); err == nil {
		testutil.Must(t, os.Chtimes(filepath.Join(dir, sealName), long, long))
	}
	testutil.Must(t, os.Chtimes(dir, long, long))
}

func TestPrune(t *testing.T) {
	s := newStore(t)
	testutil.Must(t, s.Prune()) // there is none yet
	for _, key := range []string{"held", "free", "recent"} {
		s.get(t, key, "GPU-"+key, "GPU-x")
	}
	for _, key := range []string{"held", "free"} {
		makeUnused(t, filepath.Join(s.Dir, key))
	}
	for _, name := range []string{tempName + "killed", tempName + "working"} {
		testutil.Must(t, os.Mkdir(filepath.Join(s.Dir, name), 0o700))
	}
	makeUnused(t, filepath.Join(s.Dir, tempName+"killed"))
	list := func() string {
		names, err := os.ReadDir(s.Dir)
		testutil.Must(t, err)
		var all []string
		for _, n := range names {
			all = append(all, n.Name())
		}
		return strings.Join(all, " ")
	}
	testutil.Must(t, s.Prune())
	if got := list(); got != ".new-working free held recent" {
		t.Errorf("without knowing what is held: %s", got)
	}
	s.InUse = func(devices []string) bool { return slices.Equal(devices, []string{"GPU-held", "GPU-x"}) }
	testutil.Must(t, s.Prune())
	if got := list(); got != ".new-working held recent" {
		t.Errorf("left: %s", got)
	}
}

// A view that was just used isn't removed.
func TestUsedViewIsKept(t *testing.T) {
	s := newStore(t)
	s.InUse = func([]string) bool { return false }
	path := s.get(t, "key")
	makeUnused(t, filepath.Dir(path))
	s.get(t, "key")
	testutil.Must(t, s.Prune())
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

func TestManyViewsArePruned(t *testing.T) {
	s := newStore(t)
	s.InUse = func([]string) bool { return false }
	for i := range maxViews + 20 {
		makeUnused(t, filepath.Dir(s.get(t, strings.Repeat("k", 1+i%100)+string(rune('a'+i/100)))))
	}
	names, err := os.ReadDir(s.Dir)
	testutil.Must(t, err)
	if len(names) > maxViews {
		t.Errorf("%d views", len(names))
	}
}
