package hook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/hook/entry"
	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// fakeNode records what is asked of it.
type fakeNode struct {
	fakeLeases
	asked   []ledger.Ask
	bound   []string
	err     error // of Compose
	removed []edits.Removal
	told    []string
	roots   []string
	noted   []string
	noteErr error
}

func (f *fakeNode) NoteRuntimeRoot(root string) { f.roots = append(f.roots, root) }

func (f *fakeNode) NoteLease(l ledger.Lease) error {
	f.noted = append(f.noted, l.ID+" "+l.Owner.Cgroup)
	return f.noteErr
}

func (f *fakeNode) CanReachAccelerator(*specs.Spec, string) (bool, error) { return false, nil }

// Exempt knows the annotation alone.
func (f *fakeNode) IsExempt(s *specs.Spec, _ string) (bool, error) {
	return s.Annotations["berth.exempt"] != "", nil
}

func (f *fakeNode) IdentifyDevices(_ context.Context, nodes []specs.LinuxDevice) (all []gpu.Device, err error) {
	for _, d := range nodes {
		if d.Major == 195 && d.Minor < 8 {
			all = append(all, gpu.Device{UUID: fmt.Sprint("GPU-", d.Minor), Index: fmt.Sprint(d.Minor)})
		}
	}
	return all, nil
}

func (f *fakeNode) Acquire(_ context.Context, ask ledger.Ask) (ledger.Lease, error) {
	f.asked = append(f.asked, ask)
	return ledger.Lease{ID: "new", Owner: ask.Owner}, nil
}

func (f *fakeNode) Bind(_ context.Context, id string, o ledger.Owner) error {
	f.bound = append(f.bound, fmt.Sprint(id, " ", o.Process.PID, " ", o.Cgroup, " ", o.Container, " ", o.Bundle))
	return nil
}

func (f *fakeNode) Compose(context.Context, *specs.Spec, *ledger.Lease, *os.File) (edits.Edits, []edits.Removal, error) {
	return edits.Edits{}, f.removed, f.err
}

func (f *fakeNode) LogRemovals(event, lease string, owner ledger.Owner, removed []edits.Removal) {
	f.told = append(f.told, fmt.Sprint(event, " ", lease, " ", owner.Container, " ", removed))
}

func (f *fakeNode) Release(_ context.Context, id string) error {
	f.released = append(f.released, id)
	return nil
}

// bundled writes a bundle, and returns the state of a container that is this process.
func bundled(t *testing.T, spec specs.Spec) (state, dir string) {
	t.Helper()
	dir = t.TempDir()
	spec.Version, spec.Root = "1.0.2", &specs.Root{Path: "rootfs"}
	data, err := json.Marshal(spec)
	if err == nil {
		err = errors.Join(os.WriteFile(filepath.Join(dir, "config.json"), data, 0o600), os.Mkdir(filepath.Join(dir, "rootfs"), 0o755))
	}
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(`{"ociVersion":"1.0.2","id":"c1","status":"creating","pid":%d,"bundle":%q}`, os.Getpid(), dir), dir
}

// TestHoldsLease: which leases count as the container's own, so that Create has nothing to do.
func TestHoldsLease(t *testing.T) {
	const named = "0123456789ab"
	state, dir := bundled(t, specs.Spec{Annotations: map[string]string{"dev.berth.lease": named}})
	h := Hook{}
	started, err := process.Start("/proc", os.Getpid())
	if err != nil || started == 0 {
		t.Fatal(started, err)
	}
	for _, tt := range []struct {
		name   string
		lease  ledger.Lease
		making bool
		want   bool
	}{
		{"named by the spec, and being made", ledger.Lease{ID: named, State: ledger.Reserved, Owner: ledger.Owner{Container: "c1", Bundle: dir}}, true, true},
		{"of precreate, which knows no bundle", ledger.Lease{ID: named, State: ledger.Reserved, Owner: ledger.Owner{Container: "c1"}}, true, true},
		{"named, but another container's", ledger.Lease{ID: named, State: ledger.Reserved, Owner: ledger.Owner{Container: "c2"}}, true, false},
		{"named, but nobody's", ledger.Lease{ID: named, State: ledger.Reserved}, true, false},
		{"named, of another bundle", ledger.Lease{ID: named, State: ledger.Reserved, Owner: ledger.Owner{Container: "c1", Bundle: "/b"}}, true, false},
		{"named, and its maker is gone", ledger.Lease{ID: named, State: ledger.Reserved, Owner: ledger.Owner{Container: "c1", Bundle: dir}}, false, false},
		{"not named", ledger.Lease{ID: "other", State: ledger.Reserved, Owner: ledger.Owner{Container: "c1", Bundle: dir}}, true, false},
		{"bound to this process", ledger.Lease{ID: "x", State: ledger.Bound, Owner: ledger.Owner{Container: "c1", Bundle: dir, Process: ledger.Process{PID: os.Getpid(), Start: started}}}, false, true},
		{"bound to one that had its pid", ledger.Lease{ID: "x", State: ledger.Bound, Owner: ledger.Owner{Container: "c1", Bundle: dir, Process: ledger.Process{PID: os.Getpid(), Start: started - 1}}}, false, false},
		{"of an earlier life", ledger.Lease{ID: named, State: ledger.Bound, Owner: ledger.Owner{Container: "c1", Bundle: dir, Process: ledger.Process{PID: 1, Start: 1}}}, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h.Node = &fakeNode{fakeLeases: fakeLeases{all: []ledger.Status{{Lease: tt.lease, Live: true, Making: tt.making}}}}
			c, err := h.readContainer(strings.NewReader(state))
			if err != nil {
				t.Fatal(err)
			}
			if got, err := h.holdsLease(c); got != tt.want || err != nil {
				t.Errorf("%v, %v; want %v", got, err, tt.want)
			}
		})
	}
}

// tree is where this process's cgroup is told to be one of its own, or isn't.
func tree(t *testing.T) cgroup.Hierarchy {
	t.Helper()
	h, err := cgroup.Detect("")
	if err != nil {
		t.Skip("needs cgroups")
	}
	return h
}

// TestCreateRefuses: this process isn't a container, because its cgroup is the hook's. No lease is
// taken.
func TestCreateRefuses(t *testing.T) {
	state, _ := bundled(t, specs.Spec{Annotations: map[string]string{"berth.gpus": "1"}})
	for _, tt := range []struct{ name, state, err string }{
		{"a cgroup that isn't its own", state, "is not its own"},
		{"running", strings.Replace(state, "creating", "running", 1), "too late"},
		{"no process", `{"id":"c1","status":"creating","bundle":"/b"}`, "no process"},
		{"no bundle", `{"id":"c1","status":"creating","pid":1}`, "no bundle"},
		{"no id", `{"status":"creating","pid":1}`, "no id"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := &fakeNode{}
			err := Hook{Node: f, Cgroups: tree(t)}.Create(t.Context(), strings.NewReader(tt.state), entry.RequestSet{})
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error %v, want %q", err, tt.err)
			}
			if len(f.asked) > 0 {
				t.Errorf("it took %+v", f.asked)
			}
		})
	}
}

// TestLogRemovals: removals are logged with the container's owner. Without removals nothing is logged.
func TestLogRemovals(t *testing.T) {
	f := &fakeNode{}
	h, owner := Hook{Node: f}, ledger.Owner{Container: "c1"}
	h.logRemovals(nil, owner, nil)
	h.logRemovals(nil, owner, edits.Remarks([]string{"node /dev/nvidia0"}))
	h.logRemovals(&ledger.Lease{ID: "l", Owner: owner}, ledger.Owner{}, edits.Remarks([]string{"node /dev/nvidia1"}))
	want := []string{"guarded  c1 [node /dev/nvidia0]", "prepared l c1 [node /dev/nvidia1]"}
	if !slices.Equal(f.told, want) {
		t.Errorf("%q, want %q", f.told, want)
	}
}

// TestPrecreateLogsRemovals: the removals from a container without a request are logged with podman's
// id of the container.
func TestPrecreateLogsRemovals(t *testing.T) {
	id := strings.Repeat("0a", 32)
	_, dir := bundled(t, specs.Spec{})
	f := &fakeNode{removed: []edits.Removal{edits.Remark("node /dev/nvidia0")}}
	spec := &specs.Spec{Root: &specs.Root{Path: filepath.Join(dir, "rootfs")}, Linux: &specs.Linux{CgroupsPath: "/libpod_parent/libpod-" + id}}
	if err := (Hook{Node: f}).editSpec(t.Context(), spec, nil, nil); err != nil {
		t.Fatal(err)
	}
	if want := []string{"guarded  " + id + " [node /dev/nvidia0]"}; !slices.Equal(f.told, want) {
		t.Errorf("%q, want %q", f.told, want)
	}
}

// TestBind: a lease is bound to the container that it was taken for, and to no other. A lease that was
// taken without the container's id gets it.
func TestBind(t *testing.T) {
	state, dir := bundled(t, specs.Spec{})
	for _, owner := range []ledger.Owner{{}, {Container: "c1"}} {
		f := &fakeNode{fakeLeases: fakeLeases{all: []ledger.Status{{Lease: ledger.Lease{ID: "l", State: ledger.Reserved, Owner: owner}}}}}
		h := Hook{Node: f}
		c, err := h.readContainer(strings.NewReader(state))
		if err != nil {
			t.Fatal(err)
		}
		want := []string{fmt.Sprintf("l %d /x c1 %s", os.Getpid(), dir)}
		if err := h.bindLease(t.Context(), c, "/x", "l"); err != nil || !slices.Equal(f.bound, want) {
			t.Errorf("%+v: %v, bound %q, want %q", owner, err, f.bound, want)
		}
	}
	for _, tt := range []struct {
		name  string
		lease ledger.Lease
	}{
		{"another container's", ledger.Lease{ID: "l", State: ledger.Reserved, Owner: ledger.Owner{Container: "c2"}}},
		{"bound elsewhere", ledger.Lease{ID: "l", State: ledger.Bound, Owner: ledger.Owner{Container: "c1", Process: ledger.Process{PID: 1}}}},
		{"gone", ledger.Lease{ID: "m"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := &fakeNode{fakeLeases: fakeLeases{all: []ledger.Status{{Lease: tt.lease, Live: true}}}}
			c, err := Hook{Node: f}.readContainer(strings.NewReader(state))
			if err != nil {
				t.Fatal(err)
			}
			if err := (Hook{Node: f}).bindLease(t.Context(), c, "/x", "l"); err == nil || len(f.bound) > 0 {
				t.Errorf("%v, bound %v", err, f.bound)
			}
		})
	}
}

func TestContainerOf(t *testing.T) {
	id := strings.Repeat("0a", 32)
	for path, want := range map[string]string{
		"/libpod_parent/libpod-" + id: id, "machine.slice:libpod:" + id: id, "/x/libpod-" + id + ".scope": id,
		"/user.slice/x.service/libpod-payload-" + id: id,
		"": "", "/libpod-1234": "", "/x/" + id[1:] + "g": "",
	} {
		if got := podmanID(&specs.Spec{Linux: &specs.Linux{CgroupsPath: path}}); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	if got := podmanID(&specs.Spec{}); got != "" {
		t.Errorf("no linux: %q", got)
	}
}
