package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/internal/testutil"
)

// These tests run the program on a host of their own: a mount namespace whose /etc, /run
// and /usr/local/sbin hold nothing but two runtimes that print their command line, and whose cgroups are of one version.

const searchPath = "PATH=/run/bin"

// newHost gives the calling thread such a host. config is the text of the configuration,
// noConfig for a host that has none.
func newHost(t *testing.T, config string) {
	t.Helper()
	testutil.NeedRoot(t)
	runtime.LockOSThread() // and never unlocked: the thread ends with the test
	check(t, unix.Unshare(unix.CLONE_NEWNS))
	check(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	for _, dir := range []string{"/etc", "/run", "/usr/local/sbin"} {
		check(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"))
	}
	if hybrid := "/sys/fs/cgroup/unified"; isDir(hybrid) {
		check(t, unix.Mount("tmpfs", hybrid, "tmpfs", 0, ""))
	}
	for _, name := range []string{"/run/bin/runc", "/run/bin/crun", "/run/other/runc", "/usr/local/sbin/runc", "/usr/local/sbin/crun"} {
		write(t, name, "#!/bin/sh\nprintf '%s|' \"$0\" \"$@\"\n")
		check(t, os.Chmod(name, 0o755))
	}
	if config != noConfig {
		write(t, berth.ConfigPath, config)
	}
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

const noConfig = "no configuration"

func write(t *testing.T, name, text string) {
	t.Helper()
	check(t, os.MkdirAll(filepath.Dir(name), 0o755))
	check(t, os.WriteFile(name, []byte(text), 0o644))
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func buildProgram(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	check(t, testutil.BuildPrograms(dir, "berth-runtime"))
	return filepath.Join(dir, "berth-runtime")
}

// output runs a program with exactly this environment: package os/exec would leave
// repeated names out.
func output(t *testing.T, program string, args, env []string) string {
	t.Helper()
	out, err := os.Create("/run/output")
	check(t, err)
	defer out.Close()
	p, err := os.StartProcess(program, args, &os.ProcAttr{Env: env, Files: []*os.File{nil, out, out}})
	check(t, err)
	_, err = p.Wait()
	check(t, err)
	text, err := os.ReadFile("/run/output")
	check(t, err)
	return string(text)
}

// bundles are the files of /run/bundle and /run/kept, and what a delete or a create could
// change beside them.
func bundles(t *testing.T) string {
	var b strings.Builder
	for _, pattern := range []string{"/run/bundle/*", "/run/podman/*", "/run/kept/*", "/run/berth/ledger.json"} {
		names, err := filepath.Glob(pattern)
		check(t, err)
		for _, name := range names {
			text, err := os.ReadFile(name)
			check(t, err)
			fmt.Fprintf(&b, "%s %q\n", name, text)
		}
	}
	return b.String()
}

// TestPassThrough: calls that don't concern devices reach the runtime that created the container with
// the engine's arguments, and change no file.
func TestPassThrough(t *testing.T) {
	program := buildProgram(t)
	const runc, crun = "/run/bin/runc", "/run/bin/crun"
	for _, config := range []struct{ name, text, first string }{
		{"without a configuration", noConfig, crun},
		{"with an empty configuration", "", crun},
		{"with runc configured", "runtime = 'runc'\n", runc},
		{"with runc configured by an escaped name", "runtime = \"run\\u0063\"\n", runc},
		{"with a path configured", "runtime = '/run/other/runc'\n", "/run/other/runc"},
	} {
		t.Run(config.name, func(t *testing.T) {
			newHost(t, config.text)
			for _, name := range []string{"docker", "podman"} {
				spec, err := os.ReadFile("testdata/" + name + ".json")
				check(t, err)
				write(t, map[string]string{"docker": "/run/bundle", "podman": "/run/podman"}[name]+"/config.json", string(spec))
			}
			write(t, "/run/crun/ofcrun/status", `{ "pid": 1, "bundle": "/run/bundle", "rootfs": "/" }`)
			write(t, "/run/runc/ofrunc/state.json", `{"id":"ofrunc","config":{"labels":["a=b","bundle=/run/bundle"]}}`)
			write(t, "/run/docker/plain/state.json", `{"config":{"labels":["bundle=/run/bundle"]}}`)
			before := bundles(t)
			madeByRunc := runc
			if strings.HasSuffix(config.first, "runc") {
				madeByRunc = config.first
			}
			for _, tc := range []struct{ name, args, env, want string }{
				{"version", "--version", searchPath, config.first},
				{"no words", "", searchPath, config.first},
				{"a verb of no runtime", "--new frobnicate x", searchPath, config.first},
				{"help", "start --help", searchPath, config.first},
				{"start", "start x", searchPath, config.first},
				{"as docker writes it", "--root /run/docker --log /l --log-format json start x", searchPath, config.first},
				{"with equal signs", "--root=/run/docker --log=/l --log-format=json --systemd-cgroup kill --all x 9", searchPath, config.first},
				{"exec, as containerd writes it", "exec --process /p --detach --pid-file /f x", searchPath, config.first},
				{"crun's container", "state ofcrun", searchPath, crun},
				{"runc's container", "state ofrunc", searchPath, madeByRunc},
				{"a value is no container", "exec --pid-file ofcrun --process /p x", searchPath, config.first},
				{"an unknown flag", "--new start ofcrun", searchPath, crun},
				{"an empty state directory", "--root= start ofcrun", searchPath, crun},
				{"crun's state directory", "state ofcrun", searchPath + " XDG_RUNTIME_DIR=/run", crun},
				{"an empty variable", "state x", "BERTH_CONFIG= " + searchPath, config.first},
				{"repeated variables", "state x", "A=1 A=2 " + searchPath, config.first},
				{"delete of nothing", "delete nobody", searchPath, config.first},
				{"delete by force of nothing", "delete --force nobody", searchPath, config.first},
				{"delete without a lease", "delete ofrunc", searchPath, madeByRunc},
				{"delete without a lease, crun", "delete --force ofcrun", searchPath, crun},
				{"delete under an engine's root", "--root /run/docker delete plain", searchPath, madeByRunc},
				{"delete by pattern", "delete --regex a.*", searchPath, config.first},
				{"docker's create", "--root /run/docker --log /l --log-format json create --bundle /run/bundle --pid-file /p x", searchPath, config.first},
				{"podman's create", "--log-format=json create --bundle /run/podman --pid-file /p x", searchPath, config.first},
				{"create, with a short flag", "create -b /run/bundle x", searchPath, config.first},
				{"run", "run --bundle=/run/bundle x", searchPath, config.first},
			} {
				// A subtest would run in another thread, and so on another host.
				args := append([]string{"berth-runtime"}, strings.Fields(tc.args)...)
				want := strings.Join(append([]string{tc.want}, args[1:]...), "|") + "|"
				if got := output(t, program, args, strings.Fields(tc.env)); got != want {
					t.Errorf("%s: %q, want %q", tc.name, got, want)
				}
				if after := bundles(t); after != before {
					t.Fatalf("%s: files have changed:\n%s\nthey were\n%s", tc.name, after, before)
				}
			}
		})
	}
}

// TestSearchPath: where programs are found if the configuration names no runtime.
func TestSearchPath(t *testing.T) {
	program := buildProgram(t)
	newHost(t, noConfig)
	for _, tc := range []struct{ name, env, want string }{
		{"without PATH", "A=b", "/usr/local/sbin/crun"},
		{"the first directory that has it", "PATH=/run/none:/run/other:/run/bin", "/run/bin/crun"},
		{"one runtime alone", "PATH=/run/other", "/run/other/runc"},
		{"a slash at the end", "PATH=/run/bin/", "/run/bin/crun"},
		{"no runtime", "PATH=/run/none", ""},
	} {
		want := tc.want + "|start|x|"
		if tc.want == "" {
			want = "berth: no OCI runtime is configured, and neither crun nor runc is in PATH: install one, or set runtime in berth's configuration\n"
		}
		if got := output(t, program, []string{"berth-runtime", "start", "x"}, []string{tc.env}); got != want {
			t.Errorf("%s: %q, want %q", tc.name, got, want)
		}
	}
}

// TestBrokenConfiguration: a configuration that can't be used makes only calls fail that create
// containers.
func TestBrokenConfiguration(t *testing.T) {
	program := buildProgram(t)
	for _, text := range []string{"nonsense = 1\n", "runtime = 'runc'\n[", "runtime = 1\n"} {
		t.Run(text, func(t *testing.T) {
			newHost(t, text)
			write(t, "/run/bundle/config.json", "{}")
			for args, fails := range map[string]bool{"start x": false, "delete x": false, "create --bundle /run/bundle x": true} {
				got := output(t, program, append([]string{"berth-runtime"}, strings.Fields(args)...), []string{searchPath})
				if strings.HasPrefix(got, "berth: read configuration /etc/berth/config.toml: ") != fails {
					t.Errorf("%s: %q", args, got)
				}
			}
		})
	}
}

// TestOwnProgramIsRefused: a configured runtime that is berth-runtime itself is refused.
func TestOwnProgramIsRefused(t *testing.T) {
	program := buildProgram(t)
	newHost(t, "runtime = '/run/self'\n")
	check(t, os.Symlink(program, "/run/self"))
	if got := output(t, program, []string{"r", "start", "x"}, []string{searchPath}); !strings.Contains(got, "is berth's own wrapper") {
		t.Errorf("%q", got)
	}
}
