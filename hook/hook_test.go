package hook

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/isolation/ledger"
)

type fakeLeases struct {
	all      []ledger.Status
	released []string
	err      error
}

func (f *fakeLeases) Leases() ([]ledger.Status, error) { return f.all, f.err }

func (f *fakeLeases) ReleaseIfDead(_ context.Context, id string) error {
	for _, l := range f.all {
		if l.ID == id && l.Live {
			return ledger.ErrLive
		}
	}
	f.released = append(f.released, id)
	return nil
}

func lease(id string, state ledger.State, container, bundle string, live bool) ledger.Status {
	l := ledger.Lease{ID: id, State: state, Owner: ledger.Owner{Container: container, Bundle: bundle}}
	return ledger.Status{Lease: l, Live: live, Making: live && state == ledger.Reserved}
}

func TestPoststop(t *testing.T) {
	dir := t.TempDir()
	alias := filepath.Join(t.TempDir(), "alias")
	if err := os.Symlink(dir, alias); err != nil {
		t.Fatal(err)
	}
	all := []ledger.Status{
		lease("a", ledger.Bound, "c1", "/gone/b1", false),
		lease("b", ledger.Reserved, "c2", "/gone/b2", false),
		lease("c", ledger.Reserved, "c3", "/gone/b3", true),
		lease("d", ledger.Bound, "c1", "/gone/other", false),
		lease("f", ledger.Bound, "c5", "/gone/b5", true),
		lease("e", ledger.Bound, "c4", dir, false),
	}
	tests := []struct {
		name, state string
		want        []string
		err         string
	}{
		{"bound", `{"id":"c1","bundle":"/gone/b1","status":"stopped"}`, []string{"a"}, ""},
		{"bundle written otherwise", `{"id":"c1","bundle":"/gone/./b1/","status":"stopped"}`, []string{"a"}, ""},
		{"bundle by another path", `{"id":"c4","bundle":"` + alias + `"}`, []string{"e"}, ""},
		{"made, never started", `{"id":"c2","bundle":"/gone/b2","status":"stopped"}`, []string{"b"}, ""},
		{"next life is being made", `{"id":"c3","bundle":"/gone/b3","status":"stopped"}`, nil, ""},
		{"said to be stopped, and lives", `{"id":"c5","bundle":"/gone/b5","status":"stopped"}`, nil, "holder still lives"},
		{"no lease", `{"id":"none","bundle":"/gone/b1"}`, nil, ""},
		{"same id elsewhere", `{"id":"c1","bundle":"/gone/third"}`, nil, ""},
		{"a claim in an annotation", `{"id":"x","bundle":"/x","annotations":{"dev.berth.lease":"a"}}`, nil, ""},
		{"still running", `{"id":"c1","bundle":"/gone/b1","status":"running"}`, nil, "container c1 is running"},
		{"no id", `{"bundle":"/gone/b1"}`, nil, "it has no id"},
		{"nothing", ``, nil, "unexpected end of JSON"},
		{"not JSON", `{"id":`, nil, "unexpected end of JSON"},
		{"too much", strings.Repeat(" ", stateLimit+1), nil, "more than the limit"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := &fakeLeases{all: all}
			err := Poststop(t.Context(), strings.NewReader(tt.state), f)
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error %v, want %q", err, tt.err)
			}
			if diff := cmp.Diff(tt.want, f.released); diff != "" {
				t.Error(diff)
			}
		})
	}
	if err := Poststop(t.Context(), strings.NewReader(`{"id":"c1"}`), &fakeLeases{err: errors.New("corrupt")}); err == nil {
		t.Error("a ledger that can't be read is no error")
	}
}

func FuzzPoststop(f *testing.F) {
	f.Add([]byte(`{"ociVersion":"1.0.2","id":"c1","bundle":"/b","status":"stopped","pid":1}`))
	f.Fuzz(func(t *testing.T, state []byte) {
		l := &fakeLeases{all: []ledger.Status{lease("a", ledger.Bound, "c1", "/b", false)}}
		err := Poststop(t.Context(), strings.NewReader(string(state)), l)
		if err != nil && len(l.released) > 0 {
			t.Errorf("released %v and said %v", l.released, err)
		}
	})
}

func ExamplePoststop() {
	held := &fakeLeases{all: []ledger.Status{lease("4f0c12ab34cd", ledger.Bound, "c1", "/run/c1", false)}}
	state := strings.NewReader(`{"ociVersion":"1.0.2","id":"c1","status":"stopped","bundle":"/run/c1"}`)
	if err := Poststop(context.Background(), state, held); err != nil {
		fmt.Println(err)
	}
	fmt.Println(held.released)
	// Output: [4f0c12ab34cd]
}
