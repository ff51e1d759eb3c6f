package run

import (
	stdcmp "cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/leasing"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/cmd/berth/verbtest"
	"github.com/berth-gpu/berth/launcher"
	"github.com/berth-gpu/berth/launcher/spec"
)

// launched is what a command line of run comes to.
func launched(t *testing.T, args ...string) (launcher.Options, error) {
	t.Helper()
	var o launcher.Options
	app := &cli.App{
		Name: "berth", Writer: io.Discard, ErrWriter: io.Discard, Flags: runFlags(),
		DisableSliceFlagSeparator: true, ExitErrHandler: func(*cli.Context, error) {},
		Action: func(c *cli.Context) (err error) {
			o, err = launchOptions(c, berth.Config{})
			return err
		},
	}
	err := app.RunContext(t.Context(), slices.Concat([]string{"berth"}, args, []string{"IMAGE"}))
	return o, err
}

// TestRunSettings: values of docker's flags, and the options that they become.
func TestRunSettings(t *testing.T) {
	dir := t.TempDir()
	envFile, labelFile := filepath.Join(dir, "env"), filepath.Join(dir, "labels")
	for path, text := range map[string]string{envFile: "# first\nA=file\nB=file\nBERTH_TEST_SET\nBERTH_TEST_UNSET\n", labelFile: "a=file\nb=file\nc\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("BERTH_TEST_SET", "x y")
	score := -5
	for _, tt := range []struct {
		args []string
		want launcher.Options
	}{
		{[]string{"-e", "A=flag", "--env-file", envFile, "-e", "BERTH_TEST_SET", "-e", "BERTH_TEST_UNSET"}, launcher.Options{Settings: spec.Settings{Env: []string{"A=file", "B=file", "BERTH_TEST_SET=x y", "A=flag", "BERTH_TEST_SET=x y"}}}},
		{[]string{"--entrypoint", "/bin/sh"}, launcher.Options{Settings: spec.Settings{Entrypoint: []string{"/bin/sh"}}}},
		{[]string{"--entrypoint="}, launcher.Options{Settings: spec.Settings{Entrypoint: []string{}}}},
		{[]string{"--ulimit", "memlock=-1", "--ulimit", "nofile=1024:2048"}, launcher.Options{Settings: spec.Settings{Resources: spec.Resources{Ulimits: []specs.POSIXRlimit{
			{Type: "RLIMIT_MEMLOCK", Soft: ^uint64(0), Hard: ^uint64(0)}, {Type: "RLIMIT_NOFILE", Soft: 1024, Hard: 2048},
		}}}}},
		{[]string{"--cap-add=NET_ADMIN", "--cap-drop", "ALL", "--privileged=false"}, launcher.Options{Settings: spec.Settings{Security: spec.Security{CapAdd: []string{"NET_ADMIN"}, CapDrop: []string{"ALL"}}}}},
		{[]string{"--security-opt", "no-new-privileges=false", "--security-opt", "seccomp=unconfined", "--security-opt", "label=disable", "--security-opt", "apparmor:mine"}, launcher.Options{Settings: spec.Settings{Security: spec.Security{NewPrivileges: true, Seccomp: "unconfined", AppArmor: "mine"}}}},
		{[]string{"--security-opt", "no-new-privileges", "--security-opt=seccomp=builtin"}, launcher.Options{}},
		{[]string{"-l", "a=flag", "--label-file", labelFile, "--annotation", "x=y=z"}, launcher.Options{Lifecycle: launcher.Lifecycle{Labels: map[string]string{"a": "flag", "b": "file", "c": ""}}, Settings: spec.Settings{Annotations: map[string]string{"x": "y=z"}}}},
		{[]string{"--memory", "1g", "--memory-swap", "-1", "--memory-reservation", "512m", "--pids-limit", "-1", "-c", "512", "--cpuset-cpus", "0-1", "--cpuset-mems", "0"}, launcher.Options{
			Settings: spec.Settings{Resources: spec.Resources{Memory: 1 << 30, CPUs: "0-1", MemorySwap: -1, MemoryReservation: 512 << 20, Pids: -1, CPUShares: 512, MemoryNodes: "0"}},
		}},
		{[]string{"--memory-swap", "2g", "--oom-score-adj", "-5", "--stop-signal", "INT", "--stop-timeout", "30"}, launcher.Options{Lifecycle: launcher.Lifecycle{StopSignal: "INT", StopTimeout: 30 * time.Second}, Settings: spec.Settings{Resources: spec.Resources{MemorySwap: 2 << 30, OOMScoreAdj: &score}}}},
		{[]string{"--add-host", "db:10.0.0.1", "--add-host", "six=[::1]", "--dns", "9.9.9.9", "--dns-search", "a.example", "--dns-opt", "ndots:1"}, launcher.Options{Settings: spec.Settings{
			Hosts: []string{"10.0.0.1\tdb", "::1\tsix"}, Resolver: spec.Resolver{Servers: []string{"9.9.9.9"}, Search: []string{"a.example"}, Options: []string{"ndots:1"}},
		}}},
		{[]string{"--net", "none", "--sysctl", "net.ipv4.ip_forward=1", "--hostname", "a", "--domainname", "b"}, launcher.Options{Settings: spec.Settings{Network: "none", Hostname: "a", Domainname: "b", Sysctls: map[string]string{"net.ipv4.ip_forward": "1"}}}},
		{[]string{"--runtime", "runc", "--cidfile", "/x", "--group-add", "video", "--ipc", "host", "--uts", "host", "--cgroupns", "host", "--pid", "private", "--userns", "host"}, launcher.Options{
			Runtime: "runc", Lifecycle: launcher.Lifecycle{CIDFile: "/x"}, Settings: spec.Settings{Groups: []string{"video"}, IPC: "host", UTS: "host", CgroupNS: "host"},
		}},
		{[]string{"--tmpfs", "/x:size=1m,exec", "--mount", "type=tmpfs,dst=/y,ro"}, launcher.Options{Settings: spec.Settings{Mounts: []specs.Mount{
			{Destination: "/y", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "noexec", "ro", "mode=1777"}},
			{Destination: "/x", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "size=1048576", "exec", "mode=1777"}},
		}}}},
		{[]string{"--stop-timeout", "0"}, launcher.Options{Lifecycle: launcher.Lifecycle{StopTimeout: 1}}},
		{[]string{"--hostname", "first", "--hostname", "last"}, launcher.Options{Settings: spec.Settings{Hostname: "last"}}},
	} {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			got, err := launched(t, tt.args...)
			if err != nil {
				t.Fatal(err)
			}
			tt.want.Image, got.Progress, got.Fetch = "IMAGE", nil, nil
			defaults(&tt.want)
			tt.want.Retention = backend.Retention(berth.Config{})
			if diff := cmp.Diff(tt.want, got, cmpopts.EquateEmpty(), cmpopts.IgnoreFields(launcher.Options{}, "Request", "Devices", "Search", "Inspect")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if tt.want.Entrypoint != nil && got.Entrypoint == nil {
				t.Error("the image's entrypoint stays")
			}
		})
	}
}

// defaults are those that flags have.
func defaults(o *launcher.Options) {
	o.Network = stdcmp.Or(o.Network, "host")
	o.IPC, o.UTS = stdcmp.Or(o.IPC, "private"), stdcmp.Or(o.UTS, "private")
}

// TestRunSettingsRefused: a value that is refused is an error of one line that names the flag and has
// advice.
func TestRunSettingsRefused(t *testing.T) {
	for _, tt := range []struct {
		args  []string
		fails string
	}{
		{[]string{"--env-file", "/no/such"}, "--env-file: open /no/such: no such file"},
		{[]string{"--label", "=x"}, `--label "=x" has no name`},
		{[]string{"--annotation", "x"}, `--annotation "x" is not NAME=VALUE`},
		{[]string{"--mount", "type=volume,src=x,dst=/x"}, "berth has no volumes with names"},
		{[]string{"--tmpfs", "x"}, "--tmpfs x: x is not an absolute path"},
		{[]string{"--ulimit", "files=1"}, "--ulimit files=1 is not NAME=SOFT[:HARD]"},
		{[]string{"--pids-limit", "many"}, `--pids-limit "many" is not a number`},
		{[]string{"--memory-swap", "much"}, `--memory-swap "much" is not a size`},
		{[]string{"--security-opt", "label=type:x"}, "berth sets no SELinux labels"},
		{[]string{"--security-opt", "systempaths=unconfined"}, "--privileged allows that"},
		{[]string{"--security-opt", "no-new-privileges=maybe"}, "no-new-privileges is true or false"},
		{[]string{"--security-opt", "seccomp="}, `--security-opt "seccomp=" is not known`},
		{[]string{"--pid", "host"}, "--pid host: a task that sees processes of other tasks"},
		{[]string{"--userns", "auto"}, "--userns auto: tasks have the host's user namespace"},
		{[]string{"--sysctl", "x"}, `--sysctl "x" is not NAME=VALUE`},
		{[]string{"--add-host", "db"}, `--add-host "db" is not NAME:ADDRESS`},
		{[]string{"--add-host", "db:host-gateway"}, "localhost is the host"},
		{[]string{"--add-host", "db:here"}, `"here" is not an address`},
		{[]string{"--dns", "here"}, `--dns "here" is not an address`},
		{[]string{"--dns-search", "a b"}, `"a b" is not one word`},
		{[]string{"--stop-signal", "NOPE"}, `--stop-signal: signal "NOPE" is not known`},
		{[]string{"--stop-timeout", "-5"}, "--stop-timeout -5 is no time; -1 means no limit"},
	} {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			_, err := launched(t, tt.args...)
			if err == nil || !strings.Contains(err.Error(), tt.fails) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, want one line with %q", err, tt.fails)
			}
		})
	}
}

func TestRequestOf(t *testing.T) {
	for _, tt := range []struct {
		gpus    string
		devices []string
		want    string
		fails   string
	}{
		{gpus: "2", want: "2"},
		{gpus: "none"},
		{gpus: `"device=0,1"`, want: "device=0,1"},
		{devices: []string{"berth/gpus=2"}, want: "2"},
		{devices: []string{"berth/gpus=gpu3", "berth/gpus=gpu1"}, want: "device=3,1"},
		{devices: []string{"nvidia.com/gpu=0", "nvidia.com/gpu=2"}, want: "device=0,2"},
		{devices: []string{"nvidia.com/gpu=all"}, want: "all"},
		{gpus: "2", devices: []string{"vendor.example/nic=port0"}, want: "2,vendor.example/nic=port0"},
		{devices: []string{"berth/gpus=1", "berth/with=imex:0", "berth/with=gds"}, want: "1,+gds,+imex=0"},
		{gpus: "2", devices: []string{"berth/gpus=4"}, fails: "together with 2 it isn't one request"},
		{devices: []string{"berth/with=gds"}, fails: "it goes with a request for GPUs"},
		{devices: []string{"/dev/nvidia3:/dev/nvidia0:rw"}, fails: "--device /dev/nvidia3: GPUs are leased, and a lease brings all nodes that they need; --gpus device=3"},
		{devices: []string{"/dev/nvidiactl"}, fails: "it comes with a leased GPU"},
		{devices: []string{"/dev/fuse"}, fails: "--device /dev/fuse: berth passes on no node of the host by its path"},
		{devices: []string{"fuse"}, fails: "--device fuse is no CDI name"},
		{gpus: `all,"capabilities=compute,utility"`, fails: "-e NVIDIA_DRIVER_CAPABILITIES=compute,utility"},
		{gpus: "driver=nvidia,count=2", fails: "the driver isn't named: --gpus 2"},
		{devices: []string{"/dev/infiniband/uverbs0"}, fails: "RDMA NICs are leased: --nics auto"},
		{devices: []string{"/dev/infiniband"}, fails: "RDMA NICs are leased: --nics auto"},
		{gpus: "lots!", fails: "--gpus: "},
	} {
		t.Run(fmt.Sprint(tt.gpus, tt.devices), func(t *testing.T) {
			r, ok, err := leasing.ParseDeviceFlags(tt.gpus, tt.gpus != "", tt.devices)
			switch {
			case tt.fails != "":
				if err == nil || !strings.Contains(err.Error(), tt.fails) {
					t.Errorf("%v, want %q", err, tt.fails)
				}
			case err != nil || ok != (tt.want != "") || ok && r.String() != tt.want:
				t.Errorf("%q, %v, %v, want %q", r, ok, err, tt.want)
			}
		})
	}
}

// TestCommandHint: the error of a command that isn't in the image has a hint at a likely mistake.
func TestCommandHint(t *testing.T) {
	for _, tt := range []struct {
		typed string
		code  int
		want  string
	}{
		{"image nvidia-smi -L", verb.ExitNotFound, "x; it comes with GPUs: berth run --gpus 1"},
		{"image /usr/bin/nvidia-smi", verb.ExitNotFound, "x; it comes with GPUs: berth run --gpus 1"},
		{"--gpus 1 image nvidia-smi", verb.ExitNotFound, "x"},
		{"image --rm nvidia-smi", verb.ExitNotFound, "x; flags of berth run stand before the image"},
		{"image nosuch --rm", verb.ExitNotFound, "x"},
		{"image -- nosuch", verb.ExitNotFound, "x"},
		{"image -- nvidia-smi", verb.ExitNotFound, "x; it comes with GPUs: berth run --gpus 1"},
		{"image nvidia-smi", verb.ExitNoExec, "x"},
		{"image", verb.ExitNotFound, "x"},
	} {
		t.Run(tt.typed, func(t *testing.T) {
			c, err := verbtest.ParseFlags(t, runFlags(), strings.Fields(tt.typed)...)
			if err != nil {
				t.Fatal(err)
			}
			if got := newCommandHint(c).add(tt.code, errors.New("x")); got.Error() != tt.want {
				t.Errorf("%v, want %s", got, tt.want)
			}
		})
	}
	for want, words := range map[string][]string{
		"x; a command and its arguments are words of their own, and sh -c 'LINE' takes a line of shell": {"image", "ls /"},
		"x": {"image", "no such", "/"},
	} {
		c, err := verbtest.ParseFlags(t, runFlags(), words...)
		if err != nil {
			t.Fatal(err)
		}
		if got := newCommandHint(c).add(verb.ExitNotFound, errors.New("x")); got.Error() != want {
			t.Errorf("%q: %v, want %s", words, got, want)
		}
	}
}
