package berth

import (
	"maps"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// TestInUse: a view of devices is in use while one lease holds all of them, and the view of a
// lease as long as that lease exists.
func TestInUse(t *testing.T) {
	dir := t.TempDir()
	n := &Node{ledger: ledger.Open(ledger.Options{Dir: dir + "/run", Events: dir + "/log"})}
	inv := gpu.Inventory{
		GPUs: []gpu.GPU{{UUID: "GPU-a"}, {UUID: "GPU-b", Index: 1}},
		NICs: []gpu.NIC{{Name: "mlx5_0", GUID: "1:2", Ports: []gpu.Port{{Number: 1, State: "ACTIVE"}}}},
	}
	request, err := request.Parse("2,nics=1")
	if err != nil {
		t.Fatal(err)
	}
	lease, err := n.ledger.Acquire(t.Context(), ledger.Ask{Request: request, Inventory: inv, Owner: ledger.Owner{EntryPoint: "test", Container: "c"}})
	if err != nil {
		t.Fatal(err)
	}
	look := func(want bool, names ...string) {
		t.Helper()
		if got := n.inUse(names); got != want {
			t.Errorf("%v: %v", names, got)
		}
	}
	for _, held := range [][]string{{"GPU-a", "GPU-b"}, {"GPU-b"}, {"HCA-1-2"}, {lease.ID}} {
		look(true, held...)
	}
	for _, free := range [][]string{{"GPU-a", "GPU-c"}, {"HCA-1-3"}, {"0123456789ab"}} {
		look(false, free...)
	}
	if err := n.ledger.Release(t.Context(), lease.ID); err != nil {
		t.Fatal(err)
	}
	look(false, "GPU-a")
	look(false, lease.ID)
}

// TestListOpenDevices: a GPU counts as open if a process without a lease has its node open. Descriptors of processes that hold
// a lease aren't read.
func TestListOpenDevices(t *testing.T) {
	dir := t.TempDir()
	n := &Node{
		config:  Config{Host: HostConfig{Dev: dir + "/dev", Proc: dir + "/proc"}},
		ledger:  ledger.Open(ledger.Options{Dir: dir + "/run", Events: dir + "/log"}),
		cgroups: cgroup.Hierarchy{Version: cgroup.V2},
	}
	inv := gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a"}, {UUID: "GPU-b", Index: 1, Minor: 1}}}
	one, err := request.Parse("1")
	testutil.Must(t, err)
	_, err = n.ledger.Acquire(t.Context(), ledger.Ask{Request: one, Inventory: inv, Owner: ledger.Owner{EntryPoint: "test", Cgroup: "/berth/c"}})
	testutil.Must(t, err)
	testutil.Must(t, os.Mkdir(dir+"/dev", 0o755))
	testutil.Must(t, os.Symlink("/dev/null", dir+"/dev/nvidia0"))
	testutil.Must(t, os.Symlink("/dev/full", dir+"/dev/nvidia1"))
	startFake := func(pid, cgroup, open string) (read func() bool) {
		t.Helper()
		testutil.Must(t, os.MkdirAll(dir+"/proc/"+pid+"/fd", 0o755))
		testutil.Must(t, os.WriteFile(dir+"/proc/"+pid+"/cgroup", []byte("0::"+cgroup+"\n"), 0o644))
		testutil.Must(t, os.Symlink(open, dir+"/proc/"+pid+"/fd/3"))
		watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
		testutil.Must(t, err)
		t.Cleanup(func() { _ = unix.Close(watch) })
		_, err = unix.InotifyAddWatch(watch, dir+"/proc/"+pid+"/fd", unix.IN_OPEN)
		testutil.Must(t, err)
		return func() bool {
			_, err := unix.Read(watch, make([]byte, 4096))
			return err == nil
		}
	}
	leased := startFake("101", "/berth/c/container", "/dev/null")
	other := startFake("102", "/user", "/dev/full")
	if got, want := n.ListOpenDevices(inv), []string{"GPU-b"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if !other() {
		t.Error("the descriptors of a process without a lease were not read")
	}
	if leased() {
		t.Error("the descriptors of a lease's process were read")
	}
}

// TestTooManyOpenFiles: a search for open devices ends, however many files processes have open.
func TestTooManyOpenFiles(t *testing.T) {
	null := process.OpenFile{Device: unix.Mkdev(1, 3)}
	open, ok := findDevices(slices.Values([]process.OpenFile{{}, null}), 2)
	if !ok || !maps.Equal(open, map[uint64]bool{null.Device: true}) {
		t.Errorf("got %v, %v", open, ok)
	}
	endless := func(yield func(process.OpenFile) bool) {
		for yield(null) {
		}
	}
	if _, ok := findDevices(endless, 2); ok {
		t.Error("the device nodes that are open are known")
	}
}
