package ledger

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/isolation/cgroup"
)

var (
	devicesTree = cgroup.Hierarchy{Version: cgroup.V1, Root: "/sys/fs/cgroup/devices", Mount: "/sys/fs/cgroup", Controller: "devices"}
	unifiedTree = cgroup.Hierarchy{Version: cgroup.V2, Root: "/sys/fs/cgroup", Mount: "/sys/fs/cgroup"}
)

func TestReadClaims(t *testing.T) {
	for _, tt := range []struct {
		name  string
		tree  cgroup.Hierarchy
		files map[string]string
		want  []claim
	}{
		{"nothing", unifiedTree, nil, nil},
		{"pid file", unifiedTree, map[string]string{"init.pid": "12\n"}, []claim{{pid: 12}}},
		{"pid file with nonsense", unifiedTree, map[string]string{"init.pid": "12 13"}, nil},
		{"pid file with no process", unifiedTree, map[string]string{"init.pid": "-1"}, nil},
		{"pid file, too long", unifiedTree, map[string]string{"init.pid": "12" + strings.Repeat(" ", 100)}, nil},
		{
			"runc on v2", unifiedTree,
			map[string]string{"root/c/state.json": `{"id":"c","init_process_pid":12,"init_process_start":34,"cgroup_paths":{"":"/sys/fs/cgroup/berth/c"}}`},
			[]claim{{pid: 12, recorded: 34, own: "/berth/c"}},
		},
		{
			"runc on v1", devicesTree,
			map[string]string{"root/c/state.json": `{"init_process_pid":12,"init_process_start":34,"cgroup_paths":{"memory":"/sys/fs/cgroup/memory/x","devices":"/sys/fs/cgroup/devices/berth/c"}}`},
			[]claim{{pid: 12, recorded: 34, own: "/berth/c"}},
		},
		{
			"runc, a cgroup elsewhere", devicesTree,
			map[string]string{"root/c/state.json": `{"init_process_pid":12,"cgroup_paths":{"devices":"/tmp/x"}}`},
			[]claim{{pid: 12}},
		},
		{
			"crun", unifiedTree,
			map[string]string{"root/c/status": `{"pid":12,"process-start-time":34,"cgroup-path":"/system.slice/crun-c.scope","scope":"crun-c.scope"}`},
			[]claim{{pid: 12, recorded: 34, own: "/system.slice/crun-c.scope"}},
		},
		{"cut state", unifiedTree, map[string]string{"root/c/state.json": `{"init_process_pid":12,`, "root/c/status": ""}, nil},
		{
			"all three, in this order", unifiedTree,
			map[string]string{"init.pid": "1", "root/c/state.json": `{"init_process_pid":2}`, "root/c/status": `{"pid":3}`},
			[]claim{{pid: 1}, {pid: 2}, {pid: 3}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range tt.files {
				writeFile(t, filepath.Join(dir, name), text)
			}
			o := Owner{PIDFile: filepath.Join(dir, "init.pid"), RuntimeRoot: filepath.Join(dir, "root"), Container: "c"}
			got := readClaims(o, tt.tree)
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(claim{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestClaimsNeedRegularFiles(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "real"), "12")
	if err := os.Symlink(filepath.Join(dir, "real"), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"link", "fifo", "."} {
		if c, ok := pidFileClaim(filepath.Join(dir, name)); ok {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

func writeFile(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
