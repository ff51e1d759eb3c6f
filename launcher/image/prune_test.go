package image

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/test/image/oci"
	"github.com/berth-gpu/berth/test/images/fake"
)

// documents are an origin in memory, of which only documents are read.
type documents map[digest][]byte

func (d documents) document(_ context.Context, want descriptor) ([]byte, error) {
	if data, ok := d[want.Digest]; ok {
		return data, nil
	}
	return nil, fs.ErrNotExist
}

func (d documents) layer(context.Context, layer, string) (source, error) {
	return source{}, fs.ErrNotExist
}

func (d documents) close() {}

// filledStore is a store with two pulled images that share their lowest layer, and one
// that was unpacked from a layout.
type filledStore struct {
	Store
	registry     *fake.Registry
	one, two     string   // names
	dirs1, dirs2 []string // topmost first
	layout       []string
	tasks        string
}

func fillStore(t *testing.T) filledStore {
	t.Helper()
	testutil.NeedRoot(t)
	base := func() oci.Layer { return oci.Layer{Tar: oci.Tar(oci.File{Name: "base", Body: "base"})} }
	own := func(name string) oci.Layer { return oci.Layer{Tar: oci.Tar(oci.File{Name: "own", Body: name})} }
	labelled := ispec.ImageConfig{Labels: map[string]string{"of": "one"}}
	r := fake.Serve(t, write(t, oci.Image{Tag: "1", Config: labelled, Layers: []oci.Layer{base(), own("one")}}, oci.Image{Tag: "2", Layers: []oci.Layer{base(), own("two")}}))
	s := filledStore{Store: Store{Dir: t.TempDir()}, registry: r, one: r.Host + "/app:1", two: r.Host + "/app:2", tasks: t.TempDir()}
	var err error
	s.dirs1, err = pullAndUnpack(t, s.Store, s.one, Search{})
	testutil.Must(t, err)
	s.dirs2, err = pullAndUnpack(t, s.Store, s.two, Search{})
	testutil.Must(t, err)
	s.layout, err = unpack(t, s.Store, write(t, sampleImage("", "x")))
	testutil.Must(t, err)
	return s
}

// task makes a task that uses layers.
func (s filledStore) task(t *testing.T, name string, layers []string) {
	t.Helper()
	testutil.Must(t, os.Mkdir(filepath.Join(s.tasks, name), 0o700))
	img := &Image{}
	for name, dirs := range map[string][]string{s.one: s.dirs1, s.two: s.dirs2} {
		if slices.Equal(dirs, layers) {
			var err error
			img, err = s.Open(t.Context(), name, Search{Pull: Never})
			testutil.Must(t, err)
			defer img.Close()
		}
	}
	testutil.Must(t, img.NoteLayers(filepath.Join(s.tasks, name), layers))
}

func (s filledStore) images(t *testing.T) (names []string) {
	t.Helper()
	list, err := s.List()
	testutil.Must(t, err)
	for _, i := range list {
		if i.Broken {
			t.Errorf("%s is broken", i.Name)
		}
		names = append(names, i.Name)
	}
	return names
}

func TestPrune(t *testing.T) {
	for _, tt := range []struct {
		name    string
		sel     Selection
		prepare func(t *testing.T, s filledStore) (done func())
		layers  int // that go
		left    int // names that stay
		fails   error
	}{
		{name: "what has no name", layers: 1, left: 2},
		{name: "all", sel: Selection{All: true}, layers: 4},
		{name: "all, and only told", sel: Selection{All: true, DryRun: true}, layers: 4, left: 2},
		{name: "all but a task's", sel: Selection{All: true}, prepare: func(t *testing.T, s filledStore) func() { s.task(t, "t", s.dirs1); return nil }, layers: 2, left: 1},
		{name: "all but that of a task that doesn't say which", sel: Selection{All: true}, prepare: func(t *testing.T, s filledStore) func() {
			s.task(t, "t", s.dirs1)
			testutil.Must(t, os.WriteFile(filepath.Join(s.tasks, "t", LayersFile), []byte(filepath.Base(filepath.Dir(s.dirs1[0]))+"\n"+filepath.Base(filepath.Dir(s.dirs1[1]))+"\n"), 0o600))
			return nil
		}, layers: 2, left: 1},
		{name: "a task's layout", prepare: func(t *testing.T, s filledStore) func() { s.task(t, "t", s.layout); return nil }, left: 2},
		{name: "a task of a directory", prepare: func(t *testing.T, s filledStore) func() { s.task(t, "t", []string{"/srv/root"}); return nil }, layers: 1, left: 2},
		{name: "nothing newer", sel: Selection{All: true, Before: time.Now().Add(-time.Hour)}, left: 2},
		{name: "what is older", sel: Selection{All: true, Before: time.Now().Add(time.Hour)}, layers: 4},
		{name: "with a label", sel: Selection{All: true, Labels: []Label{{Key: "of", Value: "one", Valued: true}}}, layers: 1, left: 1},
		{name: "without a label", sel: Selection{All: true, Labels: []Label{{Key: "of", Not: true}}}, layers: 1, left: 1},
		{name: "with both", sel: Selection{All: true, Labels: []Label{{Key: "of"}, {Key: "more"}}}, left: 2},
		{name: "a task that doesn't say", sel: Selection{All: true}, prepare: func(t *testing.T, s filledStore) func() {
			testutil.Must(t, os.MkdirAll(filepath.Join(s.tasks, "old/bundle"), 0o700))
			testutil.Must(t, os.WriteFile(filepath.Join(s.tasks, "old/bundle/config.json"), nil, 0o600))
			return nil
		}, left: 2, fails: ErrUnknownUse},
		{name: "who is about to use it", sel: Selection{All: true}, prepare: func(t *testing.T, s filledStore) func() {
			img, err := s.Open(t.Context(), s.one, Search{Pull: Never})
			testutil.Must(t, err)
			_, err = s.Unpack(t.Context(), img, nil)
			testutil.Must(t, err)
			return img.Close
		}, layers: 2, left: 0},
		{name: "who unpacks", prepare: func(t *testing.T, s filledStore) func() {
			testutil.Must(t, os.Rename(s.layout[0], filepath.Join(filepath.Dir(s.layout[0]), "tmp")))
			held, err := tryLock(filepath.Dir(s.layout[0]), lock.Exclusive, false)
			testutil.Must(t, err)
			return func() { held.Close() }
		}, left: 2},
		{name: "a name that can't be read", sel: Selection{All: true}, prepare: func(t *testing.T, s filledStore) func() {
			testutil.Must(t, os.WriteFile(filepath.Join(s.namesDir(), "x.json"), []byte(`{"version":99}`), 0o600))
			return func() { testutil.Must(t, os.Remove(filepath.Join(s.namesDir(), "x.json"))) }
		}, left: 2, fails: errAny},
		{name: "what others left in the directory", prepare: func(t *testing.T, s filledStore) func() {
			testutil.Must(t, os.MkdirAll(filepath.Join(s.Dir, "sha256", strings.Repeat("d", 64), "tmp/half"), 0o700))
			return nil
		}, layers: 2, left: 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := fillStore(t)
			if tt.prepare != nil {
				if done := tt.prepare(t, s); done != nil {
					defer done()
				}
			}
			tt.sel.Tasks = s.tasks
			done, err := s.Prune(tt.sel)
			if (err != nil) != (tt.fails != nil) || tt.fails != nil && tt.fails != errAny && !errors.Is(err, tt.fails) {
				t.Errorf("error %v, want %v", err, tt.fails)
			}
			if done.Layers != tt.layers || tt.layers > 0 && done.Freed == 0 {
				t.Errorf("%+v, want %d layers", done, tt.layers)
			}
			if names, _ := s.listRecords(); len(names) != tt.left { // one can't be read
				t.Errorf("%d names are left, want %d", len(names), tt.left)
			}
		})
	}
}

var errAny = errors.New("any")

// After everything is gone nothing is left, and all of it can be pulled again.
func TestPruneLeavesNothing(t *testing.T) {
	s := fillStore(t)
	_, err := s.Prune(Selection{All: true, Tasks: s.tasks})
	testutil.Must(t, err)
	testutil.Must(t, filepath.WalkDir(s.Dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			t.Errorf("left: %s", path)
		}
		return err
	}))
	testutil.Must(t, os.WriteFile(filepath.Join(s.namesDir(), ".x.json.tmp-1"), nil, 0o600)) // of one that was killed
	_, err = s.Prune(Selection{Tasks: s.tasks})
	if names, e := os.ReadDir(s.namesDir()); err != nil || e != nil || len(names) > 0 {
		t.Errorf("left: %v, %v", names, errors.Join(err, e))
	}
	again, err := pullAndUnpack(t, s.Store, s.one, Search{})
	if err != nil || !slices.Equal(again, s.dirs1) {
		t.Errorf("%v, %v", again, err)
	}
}

func TestRemove(t *testing.T) {
	for _, tt := range []struct {
		name   string
		words  func(s filledStore, ids map[string]string) []string
		task   bool // uses image one
		force  bool
		left   []string
		layers int
		fails  string
	}{
		{name: "by name", words: func(s filledStore, _ map[string]string) []string { return []string{s.one} }, left: []string{"two"}, layers: 1},
		{name: "by id", words: func(s filledStore, ids map[string]string) []string { return []string{ids[s.one][len("sha256:"):][:12]} }, left: []string{"two"}, layers: 1},
		{name: "both", words: func(s filledStore, ids map[string]string) []string { return []string{s.one, ids[s.two]} }, layers: 3},
		{name: "twice", words: func(s filledStore, ids map[string]string) []string { return []string{s.one, ids[s.one]} }, left: []string{"two"}, layers: 1},
		{name: "a task's", words: func(s filledStore, _ map[string]string) []string { return []string{s.one} }, task: true, left: []string{"one", "two"}, fails: "is used by a task"},
		{name: "one that isn't a task's", words: func(s filledStore, _ map[string]string) []string { return []string{s.two} }, task: true, left: []string{"one"}, layers: 1},
		{name: "one that is there and one that isn't", words: func(s filledStore, _ map[string]string) []string { return []string{s.one, "nothing"} }, left: []string{"two"}, layers: 1, fails: `image "nothing" is not here`},
		{name: "a task's and another", words: func(s filledStore, _ map[string]string) []string { return []string{s.one, s.two} }, task: true, left: []string{"one"}, layers: 1, fails: "is used by a task"},
		{name: "a task's, by force", words: func(s filledStore, _ map[string]string) []string { return []string{s.one} }, task: true, force: true, left: []string{"two"}},
		{name: "a slip of the pen", words: func(s filledStore, _ map[string]string) []string {
			return []string{strings.Replace(s.one, "app", "ap", 1)}
		}, left: []string{"one", "two"}, fails: "app:1?)"},
		{name: "too short an id", words: func(s filledStore, ids map[string]string) []string { return []string{ids[s.one][7:10]} }, left: []string{"one", "two"}, fails: "is not here (an id is given with 4 digits or more)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := fillStore(t)
			list, err := s.List()
			testutil.Must(t, err)
			ids := map[string]string{}
			for _, i := range list {
				ids[i.Name] = i.ID
			}
			if tt.task {
				s.task(t, "t", s.dirs1)
			}
			done, err := s.Prune(Selection{Names: tt.words(s, ids), Tasks: s.tasks, Force: tt.force})
			if tt.fails == "" {
				testutil.Must(t, err)
			} else if err == nil || !strings.Contains(err.Error(), tt.fails) {
				t.Errorf("error %v, want %q", err, tt.fails)
			}
			var want []string
			for _, name := range tt.left {
				want = append(want, map[string]string{"one": s.one, "two": s.two}[name])
			}
			if diff := cmp.Diff(want, s.images(t)); diff != "" || done.Layers != tt.layers {
				t.Errorf("%+v, want %d layers (-want +got):\n%s", done, tt.layers, diff)
			}
			if !pathExists(s.layout[0]) {
				t.Error("what wasn't named went, too")
			}
		})
	}
}

// Another name of the same image keeps it; another image of the same layers is not the one
// that a task uses. Removal by id removes all names, which takes force.
func TestRemoveOneOfTwoNames(t *testing.T) {
	s := fillStore(t)
	other := strings.Replace(s.one, "127.0.0.1", "localhost", 1)
	_, err := pullAndUnpack(t, s.Store, other, Search{})
	testutil.Must(t, err)
	s.task(t, "t", s.dirs1)
	list, err := s.List()
	testutil.Must(t, err)
	id := list[0].ID
	_, err = s.Prune(Selection{Names: []string{id}, Tasks: s.tasks})
	if !errors.Is(err, ErrNames) || len(s.images(t)) != 3 {
		t.Errorf("by id: %v, want %v", err, ErrNames)
	}
	done, err := s.Prune(Selection{Names: []string{s.one}, Tasks: s.tasks})
	if diff := cmp.Diff(Removed{Names: []string{s.one}}, done); diff != "" || err != nil || len(s.images(t)) != 2 {
		t.Errorf("one of two: %v (-want +got):\n%s", err, diff)
	}
	s.registry.Change(func(r *fake.Registry) {
		same := []oci.Layer{{Tar: oci.Tar(oci.File{Name: "base", Body: "base"})}, {Tar: oci.Tar(oci.File{Name: "own", Body: "one"})}}
		r.Dir = write(t, oci.Image{Tag: "same", Config: ispec.ImageConfig{User: "1"}, Layers: same})
	})
	_, err = pullAndUnpack(t, s.Store, s.registry.Host+"/app:same", Search{})
	testutil.Must(t, err)
	if _, err = s.Prune(Selection{Names: []string{other}, Tasks: s.tasks}); !errors.Is(err, ErrUsed) {
		t.Errorf("the last name of what a task uses: %v, want %v", err, ErrUsed)
	}
	done, err = s.Prune(Selection{Names: []string{s.registry.Host + "/app:same"}, Tasks: s.tasks})
	if err != nil || len(done.Deleted) != 1 || done.Layers != 0 {
		t.Errorf("another image of the same layers: %+v, %v: want its id", done, err)
	}
	done, err = s.Prune(Selection{Names: []string{other, s.two}, Tasks: s.tasks, Force: true})
	if err != nil || len(done.Deleted) != 2 || done.Layers != 1 || done.Freed == 0 || !pathExists(s.dirs1[0]) {
		t.Errorf("all by force: %+v, %v: want the id and a layer of one that no task uses", done, err)
	}
}

// Documents of a pull that goes on stay, though no name needs them yet.
func TestPruneDuringPull(t *testing.T) {
	s := fillStore(t)
	s.registry.Change(func(r *fake.Registry) { r.Dir = write(t, sampleImage("3", "three")) })
	img, err := s.Open(t.Context(), s.registry.Host+"/app:3", withRegistries(Search{}))
	testutil.Must(t, err)
	defer img.Close()
	_, err = s.Prune(Selection{All: true, Tasks: s.tasks})
	testutil.Must(t, err)
	if !pathExists(s.documentPath(img.manifest.Digest)) || !pathExists(s.documentPath(img.config.Digest)) {
		t.Error("the pull's documents were removed")
	}
	_, err = s.Unpack(t.Context(), img, nil)
	testutil.Must(t, err)
	if names := s.images(t); len(names) != 1 {
		t.Errorf("%v", names)
	}
}

// TestUnnamedLayers: the layers of a layout, and those of an image without a name that another image doesn't have.
func TestUnnamedLayers(t *testing.T) {
	s := fillStore(t)
	summary := func(dir string, tasks ...string) LayerSummary {
		home := filepath.Dir(dir)
		return LayerSummary{Digest: "sha256:" + filepath.Base(home), Size: layerSize(home), Tasks: append([]string{}, tasks...)}
	}
	compare := func(want ...LayerSummary) {
		t.Helper()
		got, err := s.UnnamedLayers(s.tasks)
		testutil.Must(t, err)
		for i := range got {
			if got[i].Unpacked.IsZero() {
				t.Errorf("%s was unpacked at no time", got[i].Digest)
			}
			got[i].Unpacked = time.Time{}
		}
		byDigest := func(a, b LayerSummary) int { return strings.Compare(a.Digest, b.Digest) }
		slices.SortFunc(got, byDigest)
		slices.SortFunc(want, byDigest)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	compare(summary(s.layout[0]))
	s.task(t, "layout", s.layout)
	s.task(t, "one", s.dirs1)
	records, err := s.listRecords()
	testutil.Must(t, err)
	for _, r := range records {
		if r.Name == s.one {
			testutil.Must(t, os.Remove(s.recordPath(r.Name, r.Platform)))
		}
	}
	compare(summary(s.layout[0], "layout"), summary(s.dirs1[0], "one"))
}
