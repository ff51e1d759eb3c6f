package cdi

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/gpu"
)

// makeSocket makes a socket below root.
func makeSocket(t *testing.T, root, name string) {
	t.Helper()
	path := filepath.Join(root, name)
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	l, err := net.Listen("unix", path)
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
}

// shortDirectory returns a directory with a path so short that sockets fit into it.
func shortDirectory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "berth-")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	return dir
}

func TestServices(t *testing.T) {
	const persistenced = "/run/nvidia-persistenced/socket"
	full := shortDirectory(t)
	makeSocket(t, full, persistenced)
	makeSocket(t, full, fabricManagerSocket)
	must(t, os.MkdirAll(filepath.Join(full, udevState), 0o755))
	write(t, filepath.Join(full, cufileConfig), "{}")
	odd := shortDirectory(t)
	must(t, os.MkdirAll(filepath.Join(odd, fabricManagerSocket), 0o755))
	for _, tt := range []struct {
		name      string
		root      string
		selection Selection
		want      []string
		err       string
	}{
		{name: "nothing asked", root: full, selection: Selection{Capabilities: gpu.Compute | gpu.Graphics}},
		{name: "utility", root: full, selection: Selection{Capabilities: gpu.Utility}},
		{name: "fabric manager", root: full, selection: Selection{Features: []gpu.Feature{"fabricmanager"}}, want: []string{fabricManagerSocket}},
		{
			name: "fabric manager that isn't there", root: t.TempDir(), selection: Selection{Features: []gpu.Feature{"fabricmanager"}},
			err: "feature fabricmanager: this node has no /run/nvidia-fabricmanager/socket",
		},
		{name: "fabric manager that is a directory", root: odd, selection: Selection{Features: []gpu.Feature{"fabricmanager"}}, err: "the fabric manager doesn't run"},
		{name: "GPUDirect Storage", root: full, selection: Selection{Features: []gpu.Feature{"gds"}}, want: []string{udevState, cufileConfig}},
		{name: "others", root: full, selection: Selection{Features: []gpu.Feature{"gdrcopy", "imex=0", "nvswitch"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e, err := Services(gpu.Host{DriverRoot: tt.root}, tt.selection)
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Fatalf("error %v, want %q", err, tt.err)
			}
			checkReasons(t, e)
			var got []string
			for _, m := range e.Mounts {
				got = append(got, m.Destination)
				want := bindView(filepath.Join(tt.root, m.Destination), m.Destination)
				if d := cmp.Diff(want, m); d != "" {
					t.Errorf("-want +got:\n%s", d)
				}
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
			if len(e.Nodes)+len(e.Env) > 0 {
				t.Errorf("it brings more than mounts: %+v", e)
			}
		})
	}
}
