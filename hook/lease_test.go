package hook

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// TestReleaseFormerLease: if a container is created again in the same cgroup, the lease of its earlier
// run is released unless a process of that run may still live.
func TestReleaseFormerLease(t *testing.T) {
	state, dir := bundled(t, specs.Spec{})
	const place = "/docker/c1"
	own, err := pidNamespace("/proc")
	if err != nil {
		t.Fatal(err)
	}
	parent, err := process.Start("/proc", os.Getppid())
	if err != nil {
		t.Fatal(err)
	}
	alone := fmt.Sprintln(os.Getpid())
	former := ledger.Owner{Container: "c1", Bundle: dir, Cgroup: place, Process: ledger.Process{PID: os.Getppid(), Start: parent - 1, Namespace: own}}
	changed := func(f func(*ledger.Owner)) ledger.Owner { o := former; f(&o); return o }
	for _, tt := range []struct {
		name  string
		owner ledger.Owner
		state ledger.State
		procs string // of the cgroup, and of one below it
		below string
		over  bool
	}{
		{"over", former, ledger.Bound, alone, "", true},
		{"its first process lives", changed(func(o *ledger.Owner) { o.Process.Start = parent }), ledger.Bound, alone, "", false},
		{"others live in its cgroup", former, ledger.Bound, alone + "1\n", "", false},
		{"others live below", former, ledger.Bound, alone, "1\n", false},
		{"the new one isn't in its cgroup", former, ledger.Bound, "", "", false},
		{"another cgroup", changed(func(o *ledger.Owner) { o.Cgroup = "/other" }), ledger.Bound, alone, "", false},
		{"another container", changed(func(o *ledger.Owner) { o.Container = "c2" }), ledger.Bound, alone, "", false},
		{"another bundle", changed(func(o *ledger.Owner) { o.Bundle = "/b" }), ledger.Bound, alone, "", false},
		{"processes that may be hidden", changed(func(o *ledger.Owner) { o.Process.Namespace++ }), ledger.Bound, alone, "", false},
		{"being made", former, ledger.Reserved, alone, "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tree := t.TempDir()
			for path, procs := range map[string]string{place: tt.procs, place + "/below": tt.below} {
				if err := os.MkdirAll(filepath.Join(tree, path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(tree, path, "cgroup.procs"), []byte(procs), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			f := &fakeNode{fakeLeases: fakeLeases{all: []ledger.Status{{Lease: ledger.Lease{ID: "l", State: tt.state, Owner: tt.owner}, Live: true}}}}
			h := Hook{Node: f, Cgroups: cgroup.Hierarchy{Version: cgroup.V2, Root: tree}}
			c, err := h.readContainer(strings.NewReader(state))
			if err != nil {
				t.Fatal(err)
			}
			if err := h.releaseFormerLease(t.Context(), c, place); err != nil {
				t.Fatal(err)
			}
			if over := slices.Equal(f.released, []string{"l"}); over != tt.over {
				t.Errorf("released %q", f.released)
			}
		})
	}
}

// TestNotedLease: a lease is noted at the container's cgroup. A container whose lease can't be noted gets none.
func TestNotedLease(t *testing.T) {
	state, _ := bundled(t, specs.Spec{})
	for _, noteErr := range []error{nil, unix.EPERM} {
		f := &fakeNode{noteErr: noteErr}
		h := Hook{Node: f}
		c, err := h.readContainer(strings.NewReader(state))
		if err != nil {
			t.Fatal(err)
		}
		_, err = h.takeLease(t.Context(), c, "/docker/c1", request.Request{})
		if !errors.Is(err, noteErr) || !slices.Equal(f.noted, []string{"new /docker/c1"}) {
			t.Errorf("%v, noted %q", err, f.noted)
		}
		if released := len(f.released) > 0; released != (noteErr != nil) {
			t.Errorf("%v: released %q", noteErr, f.released)
		}
	}
}
