package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
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

// Words as people type them for docker, and what they come to.
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
			tt.want.Retention = retentionOf(berth.Config{})
			if diff := cmp.Diff(tt.want, got, cmpopts.EquateEmpty(), cmpopts.IgnoreFields(launcher.Options{}, "Request", "Berths", "Search")); diff != "" {
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
	o.Network = or(o.Network, "host")
	o.IPC, o.UTS = or(o.IPC, "private"), or(o.UTS, "private")
}

// What can't be is one line that names the flag, and says what can.
func TestRunSettingsThatCantBe(t *testing.T) {
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
		{[]string{"--security-opt", "systempaths=unconfined"}, "--privileged is for tasks that are to be"},
		{[]string{"--security-opt", "no-new-privileges=maybe"}, "no-new-privileges is true or false"},
		{[]string{"--security-opt", "seccomp="}, `--security-opt "seccomp=" is not known`},
		{[]string{"--pid", "host"}, "--pid host: a task that sees others' processes"},
		{[]string{"--userns", "auto"}, "--userns auto: tasks have the host's users"},
		{[]string{"--sysctl", "x"}, `--sysctl "x" is not NAME=VALUE`},
		{[]string{"--add-host", "db"}, `--add-host "db" is not NAME:ADDRESS`},
		{[]string{"--add-host", "db:host-gateway"}, "localhost is the host"},
		{[]string{"--add-host", "db:here"}, `"here" is not an address`},
		{[]string{"--dns", "here"}, `--dns "here" is not an address`},
		{[]string{"--dns-search", "a b"}, `"a b" is not one word`},
		{[]string{"--stop-signal", "NOPE"}, `--stop-signal: signal "NOPE" is not known`},
		{[]string{"--stop-timeout", "-5"}, "--stop-timeout -5 is no time; -1 is for ever"},
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
		{devices: []string{"/dev/nvidia3:/dev/nvidia0:rw"}, fails: "--device /dev/nvidia3: GPUs are leased, and what goes with them comes along; --gpus device=3"},
		{devices: []string{"/dev/nvidiactl"}, fails: "it comes with a GPU that is leased"},
		{devices: []string{"/dev/fuse"}, fails: "--device /dev/fuse: berth passes on no node of the host by its path"},
		{devices: []string{"fuse"}, fails: "--device fuse is no CDI name"},
		{gpus: `all,"capabilities=compute,utility"`, fails: "-e NVIDIA_DRIVER_CAPABILITIES=compute,utility"},
		{gpus: "lots!", fails: "--gpus: "},
	} {
		t.Run(fmt.Sprint(tt.gpus, tt.devices), func(t *testing.T) {
			r, ok, err := parseDeviceFlags(tt.gpus, tt.gpus != "", tt.devices)
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

// A command that isn't in the image may have been meant for something else.
func TestCommandHint(t *testing.T) {
	for _, tt := range []struct {
		typed string
		code  int
		want  string
	}{
		{"image nvidia-smi -L", exitNotFound, "x; it comes with GPUs: berth run --gpus 1"},
		{"image /usr/bin/nvidia-smi", exitNotFound, "x; it comes with GPUs: berth run --gpus 1"},
		{"--gpus 1 image nvidia-smi", exitNotFound, "x"},
		{"image --rm nvidia-smi", exitNotFound, "x; flags of berth run stand before the image"},
		{"image nosuch --rm", exitNotFound, "x"},
		{"image -- nosuch", exitNotFound, "x"},
		{"image -- nvidia-smi", exitNotFound, "x; it comes with GPUs: berth run --gpus 1"},
		{"image nvidia-smi", exitNoExec, "x"},
		{"image", exitNotFound, "x"},
	} {
		t.Run(tt.typed, func(t *testing.T) {
			c, err := parsed(t, runFlags(), strings.Fields(tt.typed)...)
			if err != nil {
				t.Fatal(err)
			}
			if got := newCommandHint(c).add(tt.code, errors.New("x")); got.Error() != tt.want {
				t.Errorf("%v, want %s", got, tt.want)
			}
		})
	}
}

// dockers are the flags of docker run 29, but for those of Windows alone.
const dockers = `add-host annotation attach blkio-weight blkio-weight-device cap-add cap-drop cgroup-parent cgroupns
cidfile cpu-period cpu-quota cpu-rt-period cpu-rt-runtime cpu-shares cpus cpuset-cpus cpuset-mems detach detach-keys
device device-cgroup-rule device-read-bps device-read-iops device-write-bps device-write-iops disable-content-trust
dns dns-option dns-search domainname entrypoint env env-file expose gpus group-add health-cmd health-interval
health-retries health-start-interval health-start-period health-timeout hostname init interactive ip ip6 ipc isolation
kernel-memory label label-file link link-local-ip log-driver log-opt mac-address memory memory-reservation memory-swap
memory-swappiness mount name network network-alias no-healthcheck oom-kill-disable oom-score-adj pid pids-limit
platform privileged publish publish-all pull quiet read-only restart rm runtime security-opt shm-size sig-proxy
stop-signal stop-timeout storage-opt sysctl tmpfs tty ulimit use-api-socket user userns uts volume volume-driver
volumes-from workdir`

// runNames are the names of run's flags.
func runNames() map[string]bool {
	names := map[string]bool{}
	for _, f := range runCommand().Flags {
		for _, name := range f.Names() {
			names[name] = true
		}
	}
	return names
}

// Every flag of docker's is there, or berth says why it isn't; never both.
func TestDockersFlags(t *testing.T) {
	have, page := runNames(), flagsPage(t)
	for _, name := range strings.Fields(dockers) {
		_, explained := absentRunFlags()[name]
		if have[name] == explained {
			t.Errorf("--%s: there: %v, explained: %v", name, have[name], explained)
		}
		if !strings.Contains(page, "`--"+name) {
			t.Errorf("docs/reference/flags.md doesn't speak of --%s", name)
		}
	}
	for name := range have {
		if len(name) > 1 && !strings.Contains(page, "`--"+name) {
			t.Errorf("docs/reference/flags.md doesn't speak of --%s", name)
		}
	}
	for name := range absentRunFlags() {
		if have[name] {
			t.Errorf("--%s is there, and explained as if it weren't", name)
		}
	}
}

// elsewhere are the flags of docker's other verbs, and the letters that its people type.
func elsewhere() map[string]string {
	return map[string]string{
		"ps": "all a filter f format last n latest l no-trunc quiet q size s", "images": "all a digests filter f format no-trunc quiet q tree",
		"inspect": "format f size s type", "rm": "force f link l volumes v", "stop": "signal s timeout t time", "kill": "signal s",
		"logs": "details follow f since tail n timestamps t until", "attach": "detach-keys no-stdin sig-proxy",
		"exec": "detach d detach-keys env e env-file interactive i privileged tty t user u workdir w", "stats": "all a format no-stream no-trunc",
		"pull": "all-tags a disable-content-trust platform quiet q", "rmi": "force f no-prune platform", "prune": "all a filter force f volumes",
	}
}

// Docker's flags of other verbs are there, or explained; never both.
func TestDockersFlagsElsewhere(t *testing.T) {
	app := newApp()
	for verb, flags := range elsewhere() {
		for _, name := range strings.Fields(flags) {
			flag := strings.Repeat("-", min(2, len(name))) + name
			if have, why := flagOf(app.Command(verb).Flags, name) != nil, explainAbsentFlag(verb, flag); have == (why != "") {
				t.Errorf("%s %s: there: %v, explained: %q", verb, flag, have, why)
			}
		}
	}
	for verb, flags := range absentVerbFlags() {
		for name := range flags {
			if !slices.Contains(strings.Fields(elsewhere()[verb]), name) {
				t.Errorf("%s --%s isn't docker's", verb, name)
			}
		}
	}
}

// What isn't there is refused in one line with the way out, and as its verb's mistakes are.
func TestAbsentElsewhere(t *testing.T) {
	for _, tt := range []struct {
		typed, line string
		code        int
	}{
		{"ps --format {{.ID}}", "there is no --format: --json prints", exitUsage},
		{"ps -as", "there is no --size: ", exitUsage},
		{"inspect -f {{.ID}} a", "there is no --format: it prints JSON", exitUsage},
		{"stop a -s INT", "there is no --signal: berth run --stop-signal", exitUsage},
		{"exec --detach-keys a b c", "there is no --detach-keys: berth exec -d", exitBerth},
		{"kill -9 a", "there is no flag -9: berth kill -s 9 sends that signal", exitUsage},
		{"kill -KILL a", "there is no flag --KILL: berth kill -s KILL sends that signal", exitUsage},
		{"stats -a", "there is no --all: ", exitUsage},
	} {
		t.Run(tt.typed, func(t *testing.T) {
			app := newApp()
			err := app.Run(orderArguments(app, append([]string{"berth"}, strings.Fields(tt.typed)...)))
			if code, line := exitStatus(err); code != tt.code || !strings.HasPrefix(line, tt.line) {
				t.Errorf("%d, %s", code, line)
			}
		})
	}
}

// Flags of Apptainer and Slurm are explained, and never both there and explained.
func TestOtherToolsFlags(t *testing.T) {
	app := newApp()
	for verb, all := range map[string][]map[string]string{"run": {apptainerFlags(), slurmFlags()}, "alloc": {allocFlags()}} {
		for _, flags := range all {
			for name := range flags {
				if flagOf(app.Command(verb).Flags, name) != nil {
					t.Errorf("berth %s has --%s, and says that it hasn't", verb, name)
				}
			}
		}
	}
	for typed, want := range map[string]string{
		"run --nv image":               "there is no --nv: --gpus 1 gives",
		"run -B /data image":           "there is no -B: -v SRC:DST",
		"run --bind /data image":       "there is no --bind: -v SRC:DST",
		"run --gres=gpu:2 image":       "there is no --gres: --gpus 2",
		"run --time 1:00:00 image":     "there is no --time: --timeout 2h",
		"run --runtime nvidia image":   "--runtime nvidia isn't needed: --gpus brings",
		"alloc --gres=gpu:2 sleep 1":   "there is no --gres: the request is the first word",
		"alloc --time=1:00:00 1 sleep": "there is no --time: timeout 2h before the command",
	} {
		err := newApp().Run(orderArguments(app, append([]string{"berth"}, strings.Fields(typed)...)))
		if code, line := exitStatus(err); code != exitBerth || !strings.HasPrefix(line, want) {
			t.Errorf("%s: %d, %s", typed, code, line)
		}
	}
}

func TestAbsentFlags(t *testing.T) {
	for flag, want := range map[string]string{
		"-P":     "there is no --publish-all: a task shares the host's network",
		"-dP":    "there is no --publish-all: ",
		"-itP":   "there is no --publish-all: ",
		"--link": "there is no --link: ",
	} {
		app := newApp()
		app.Writer, app.ErrWriter = os.Stderr, os.Stderr
		app.ExitErrHandler = func(*cli.Context, error) {}
		err := app.Run(orderArguments(app, []string{"berth", "run", flag, "80:80", "IMAGE"}))
		code, line := exitStatus(err)
		if code != exitBerth || !strings.HasPrefix(line, want) {
			t.Errorf("%s: %d, %s", flag, code, line)
		}
	}
	if got := explainAbsentFlag("run", "--gpu"); got != "" {
		t.Errorf("an unknown flag is explained: %s", got)
	}
}

func flagsPage(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/reference/flags.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

const (
	absentBegins = "<!-- make docs writes these tables -->\n"
	absentEnds   = "<!-- end -->\n"
)

// TestGeneratedTables: the page says what the command says.
func TestGeneratedTables(t *testing.T) {
	page := flagsPage(t)
	before, rest, ok1 := strings.Cut(page, absentBegins)
	_, after, ok2 := strings.Cut(rest, absentEnds)
	if !ok1 || !ok2 {
		t.Fatal("docs/reference/flags.md has no place for the tables")
	}
	text := "| docker's flag of run | what serves instead |\n|---|---|\n" + rowsOf("", absentRunFlags())
	text += "\n| of another verb | what serves instead |\n|---|---|\n"
	for _, verb := range slices.Sorted(maps.Keys(absentVerbFlags())) {
		text += rowsOf(verb+" ", absentVerbFlags()[verb])
	}
	golden(t, "../../docs/reference/flags.md", before+absentBegins+text+absentEnds+after)
}

// rowsOf is a table's: flags that the same serves for share one.
func rowsOf(verb string, absent map[string]string) string {
	flags := map[string][]string{}
	for name, why := range absent {
		flags[why] = append(flags[why], "`"+verb+"--"+name+"`")
	}
	var rows []string
	for why := range flags {
		slices.Sort(flags[why])
		rows = append(rows, "| "+strings.Join(flags[why], ", ")+" | "+why+" |\n")
	}
	slices.Sort(rows)
	return strings.Join(rows, "")
}
