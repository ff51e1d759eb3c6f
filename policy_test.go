package berth

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/request"
)

func TestCheckRequest(t *testing.T) {
	tests := []struct {
		name, request string
		policy        Policy
		err           string
	}{
		{"GPUs", "2", Policy{}, ""},
		{"feature, nothing allowed", "2,+gds", Policy{}, "feature gds: not allowed on this node: policy.features lists none"},
		{"feature, another one allowed", "2,+gds", Policy{Features: []string{"imex"}}, "policy.features lists imex"},
		{"feature", "2,+gds", Policy{Features: []string{"gds"}}, ""},
		{"feature with a value", "2,+imex=0-3", Policy{Features: []string{"imex"}}, ""},
		{"one of two", "2,+gds,+imex=0", Policy{Features: []string{"imex"}}, "feature gds"},
		{"CDI, nothing allowed", "v/c=a", Policy{Features: []string{"gds"}}, "CDI device v/c=a: not allowed on this node: policy.cdi lists none"},
		{"CDI", "1,v/c=a", Policy{CDI: []string{"v/*"}}, ""},
		{"a gang's part", "1;1,+gds", Policy{}, "feature gds: not allowed on this node"},
		{"a gang's CDI", "1;1,v/c=a", Policy{}, "CDI device v/c=a: not allowed on this node"},
		{"CDI of another class", "1,v/c=a", Policy{CDI: []string{"v/d"}}, "policy.cdi lists v/d"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := request.Parse(tt.request)
			if err != nil {
				t.Fatal(err)
			}
			err = tt.policy.checkRequest(r)
			if (err == nil) != (tt.err == "") || err != nil && (!errors.Is(err, ErrForbidden) || !strings.Contains(err.Error(), tt.err)) {
				t.Errorf("got %v, want %q", err, tt.err)
			}
		})
	}
}

func TestChooseCapabilities(t *testing.T) {
	tests := []struct {
		name, value, policy string
		want                gpu.Capabilities
		err                 string
	}{
		{"not set", "", "", gpu.Compute | gpu.Utility, ""},
		{"not set, less allowed", "", "utility", gpu.Utility, ""},
		{"all", "all", "", allCapabilities, ""},
		{"all that is allowed", "all", "compute,video", gpu.Compute | gpu.Video, ""},
		{"some", "graphics,compute", "", gpu.Graphics | gpu.Compute, ""},
		{"more than is allowed", "graphics,compute", "compute,utility", 0, "graphics: not allowed on this node: policy.capabilities is compute,utility"},
		{"unknown", "computer", "", 0, "NVIDIA_DRIVER_CAPABILITIES"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			env := []string{"PATH=/bin", "NVIDIA_DRIVER_CAPABILITIES=ngx", "NVIDIA_DRIVER_CAPABILITIES=" + tt.value}
			got, err := Policy{Capabilities: tt.policy}.chooseCapabilities(env)
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Fatalf("got %v, want %q", err, tt.err)
			}
			if got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

const allCapabilities = gpu.Compute | gpu.Compat32 | gpu.Graphics | gpu.Utility | gpu.Video | gpu.Display | gpu.NGX

func TestLoadConfigRefuses(t *testing.T) {
	tests := []struct{ name, text, err string }{
		{"feature", "[policy]\nfeatures = ['gdx']", `policy.features: unknown feature "gdx"; known: `},
		{"capability", "[policy]\ncapabilities = 'computer'", "policy.capabilities: "},
		{"CDI", "[policy]\ncdi = ['vendor.example']", `policy.cdi: "vendor.example" isn't vendor/class`},
		{"visible devices", "[policy]\nvisible_devices = 'all'", `policy.visible_devices: unknown word "all"; known: ignore, count, honour, refuse`},
		{"NICs", "[policy]\nnics = 'mine'", `policy.nics: unknown word "mine"; known: shared, exclusive`},
		{"show", "[policy]\nshow = 'some'", `policy.show: unknown word "some"; known: all, users, none`},
		{"indices", "[policy]\nnvidia_indices = 'any'", `policy.nvidia_indices: unknown word "any"; known: exact, count`},
		{"directory", "[host]\ncdi = ['etc/cdi']", `host.cdi: "etc/cdi" is not an absolute path`},
		{"hook", "hook = 'berth-hook'", `hook: "berth-hook" is not an absolute path`},
		{"shm", "[policy]\nshm = '200%'", `policy.shm: "200%" isn't a number of bytes, a part like 50%, or engine`},
		{"shm in words", "[policy]\nshm = '1g'", `policy.shm: "1g" isn't a number`},
		{"NCCL's file", "[policy]\nnccl_conf = 'nccl.conf'", `policy.nccl_conf: "nccl.conf" is not an absolute path`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "config.toml")
			if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := LoadConfig(path); err == nil || !strings.Contains(err.Error(), path+": "+tt.err) {
				t.Errorf("got %v, want %q", err, tt.err)
			}
		})
	}
}

// TestOddConfig: a configuration that is no regular file, or a dangling link, is an error that names the path. It is never
// read as an empty file, which would have the defaults of every policy, and never waited for.
func TestOddConfig(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "config.toml")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name string
		make func()
		want string
	}{
		{"FIFO", func() { must(unix.Mkfifo(path, 0o600)) }, "it is no regular file"},
		{"directory", func() { must(os.Mkdir(path, 0o700)) }, "it is no regular file"},
		{"device", func() { must(os.Symlink("/dev/null", path)) }, "it is no regular file"},
		{"socket", func() {
			l, err := net.Listen("unix", path)
			must(err)
			t.Cleanup(func() { l.Close() })
		}, "it is no regular file"},
		{"dangling link", func() { must(os.Symlink("nowhere", path)) }, "it is a symbolic link to nowhere: no such file or directory"},
		{"loop", func() { must(os.Symlink("config.toml", path)) }, "too many levels of symbolic links"},
		{"10 GB", func() { must(os.WriteFile(path, nil, 0o600)); must(os.Truncate(path, 10<<30)) }, "file is too large: more than 1048576 bytes"},
		{"missing", func() {}, "no such file or directory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			must(os.RemoveAll(path))
			tt.make()
			if _, err := LoadConfig(path); err == nil || err.Error() != "read configuration "+path+": "+tt.want {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if data, err := readConfigFile(path, true); (err == nil) != (tt.name == "missing") || len(data) > 0 {
				t.Errorf("as an optional file: %q, %v", data, err)
			}
		})
	}
}

// TestPackagedConfig: the packaged configuration equals the built-in defaults.
func TestPackagedConfig(t *testing.T) {
	got, err := LoadConfig("packaging/config.toml")
	if err != nil {
		t.Fatal(err)
	}
	want := Policy{
		Guard: new(true), MemoryPolicy: new(true), Shm: "50%", Capabilities: "all", VisibleDevices: "ignore", NVIDIAIndices: "exact",
		NICs: "shared", InUse: "refuse", Leftover: "report", Unstarted: "1h", Show: "users",
		Features: []string{}, CDI: []string{}, ExemptNamespaces: []string{},
	}
	if diff := cmp.Diff(want, got.Policy); diff != "" {
		t.Error(diff)
	}
}
