//go:build amd64 || arm64

package early

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

const path = "PATH=/run/bin"

// stackOf is what the kernel puts on the stack of a program, up to the environment.
func stackOf(args, env []string) (stack []uintptr, keep []*byte) {
	stack = []uintptr{uintptr(len(args))}
	for _, list := range [][]string{args, env} {
		for _, s := range list {
			p, err := unix.BytePtrFromString(s)
			if err != nil {
				panic(err)
			}
			keep, stack = append(keep, p), append(stack, uintptr(unsafe.Pointer(p)))
		}
		stack = append(stack, 0)
	}
	return stack, keep
}

// judged is the program that Begin would become or start, "" where there is none.
func judged(args, env []string) (string, verdict) {
	stack, keep := stackOf(args, env)
	argv := unsafe.Pointer(&stack[1])
	v := decide(len(args), argv, unsafe.Add(argv, (len(args)+1)*word))
	runtime.KeepAlive(keep)
	if v == left {
		return "", v
	}
	return unix.ByteSliceToString(work.program.text[:]), v
}

// became is the program that Begin would become, "" where it returns.
func became(args, env []string) string {
	if program, v := judged(args, env); v == becomes {
		return program
	}
	return ""
}

// host makes /etc, /run and /usr/local/sbin this test's own, with two runtimes that say what they were
// called with and a configuration that is old enough.
func host(t *testing.T, config string) {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("BERTH_TEST_ROOT") == "1" {
			t.Fatal("needs root")
		}
		t.Skip("needs root")
	}
	runtime.LockOSThread() // and never unlocked: the thread ends with the test
	check(t, unix.Unshare(unix.CLONE_NEWNS))
	check(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	for _, dir := range []string{"/etc", "/run", "/usr/local/sbin"} {
		check(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"))
	}
	for _, dir := range []string{"/etc/berth", "/run/berth", "/run/bin", "/run/other", "/run/bundle"} {
		check(t, os.Mkdir(dir, 0o755))
	}
	for _, name := range []string{"/run/bin/runc", "/run/bin/crun", "/run/other/runc", "/usr/local/sbin/runc", "/usr/local/sbin/crun"} {
		write(t, name, "#!/bin/sh\nprintf '%s|' \"$0\" \"$@\"\n")
		check(t, os.Chmod(name, 0o755))
	}
	write(t, places.config, config)
	old(t)
}

// old waits until the configuration may be noted, in a kernel with ticks of 10 ms or less.
func old(t *testing.T) {
	t.Helper()
	settled = 50 * time.Millisecond
	var st unix.Stat_t
	check(t, unix.Stat(places.config, &st))
	time.Sleep(time.Until(time.Unix(st.Ctim.Unix()).Add(settled)))
}

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

// note has what is configured written down, as the first call does.
func note(t *testing.T, name string) {
	t.Helper()
	if got := became([]string{"r", "start", "x"}, []string{path}); got != "" {
		t.Fatalf("without a note it becomes %s", got)
	}
	c := Look()
	if c == nil {
		t.Fatal("no note is wanted")
	}
	check(t, c.Note(name))
}

func TestWhatIsEarly(t *testing.T) {
	host(t, "")
	note(t, "runc")
	write(t, places.ledger, `{"container":"leased"}`)
	write(t, "/run/crun/ofcrun/status", `{ "pid": 1, "bundle": "/run/bundle", "rootfs": "/" }`)
	write(t, "/run/runc/plain/state.json", `{"id":"plain","config":{"labels":["a=b","bundle=/run/bundle"]}}`)
	write(t, "/run/runc/twice/state.json", `{"config":{"labels":["bundle=/x","bundle=/run/bundle"]}}`)
	write(t, "/run/runc/escaped/state.json", `{"config":{"labels":["bundle=/run/b\u0026"]}}`)
	write(t, "/run/runc/nameless/state.json", `{"config":{}}`)
	write(t, "/run/runc/kept/state.json", `{"config":{"labels":["bundle=/run/kept"]}}`)
	write(t, "/run/kept/config.json.berth", "{}")
	write(t, "/run/crun/keptbycrun/status", `{"bundle" : "/run/kept"}`)
	write(t, "/run/runc/large/state.json", `{"config":{"labels":["bundle=/run/bundle"]}}`+strings.Repeat(" ", 1<<18))
	const runc, crun = "/run/bin/runc", "/run/bin/crun"
	for _, tc := range []struct {
		name, args, env, want string
	}{
		{"start", "start x", path, runc},
		{"what docker says", "--root /run/docker --log /l --log-format json start x", path, runc},
		{"with equal signs", "--root=/run/docker --log=/l --log-format=json --systemd-cgroup kill --all x 9", path, runc},
		{"a container of the other runtime", "state ofcrun", path, crun},
		{"exec, as containerd says it", "exec --process /p --detach --pid-file /f x", path, runc},
		{"a value isn't an argument", "exec --pid-file ofcrun --process /p x", path, runc},
		{"without PATH", "start x", "A=b", "/usr/local/sbin/runc"},
		{"create", "create x", path, ""},
		{"run", "run x", path, ""},
		{"update", "update x", path, ""},
		{"no verb", "--root /x", path, ""},
		{"nothing", "", path, ""},
		{"no container", "start", path, ""},
		{"help", "start --help", path, ""},
		{"an unknown flag", "--new start x", path, ""},
		{"a flag of another verb", "start --force x", path, ""},
		{"a relative state directory", "--root x start x", path, ""},
		{"a detour", "--root /run/../x start x", path, ""},
		{"no state directory", "--root= start x", path, ""},
		{"another configuration", "start x", path + " BERTH_CONFIG=/x", ""},
		{"the first of two counts", "start x", "BERTH_CONFIG= BERTH_CONFIG=/x " + path, runc},
		{"a relative directory in PATH", "start x", "PATH=/run/bin:bin", ""},
		{"an empty directory in PATH", "start x", "PATH=:/run/bin", ""},
		{"an empty directory at the end", "start x", "PATH=/run/bin:", ""},
		{"a slash at the end", "start x", "PATH=/run/bin/", ""},
		{"two slashes", "start x", "PATH=/run//bin", ""},
		{"the first directory that has it", "start x", "PATH=/run/none:/run/other:/run/bin", "/run/other/runc"},
		{"crun's state directory", "state ofcrun", path + " XDG_RUNTIME_DIR=/run", crun},
		{"delete of nobody", "delete nobody", path, runc},
		{"delete --force of nobody", "delete --force nobody", path, runc},
		{"delete of two", "delete a b", path, ""},
		{"delete by pattern", "delete --regex a.*", path, ""},
		{"delete of what has a lease", "delete leased", path, ""},
		{"delete of what may have one", "delete lease", path, ""},
		{"delete of strange letters", "delete a+b", path, ""},
		{"delete without a lease", "delete plain", path, runc},
		{"delete without a lease, crun", "delete ofcrun", path, crun},
		{"delete with a rewritten bundle", "delete kept", path, ""},
		{"delete with a rewritten bundle, crun", "delete -f keptbycrun", path, ""},
		{"delete with two bundles", "delete twice", path, ""},
		{"delete with an escape", "delete escaped", path, ""},
		{"delete without a bundle", "delete nameless", path, ""},
		{"delete with a large state", "delete large", path, ""},
	} {
		// A subtest would run in another thread, and so on another host.
		if got := became(append([]string{"r"}, strings.Fields(tc.args)...), strings.Fields(tc.env)); got != tc.want {
			t.Errorf("%s: becomes %q, want %q", tc.name, got, tc.want)
		}
	}
}

func TestNoteHoldsForOneConfiguration(t *testing.T) {
	start := []string{"r", "start", "x"}
	for _, tc := range []struct {
		name   string
		change func(*testing.T)
		want   string
		wanted bool
	}{
		{"nothing changes", func(*testing.T) {}, "/run/bin/crun", false},
		{"another content", func(t *testing.T) { write(t, places.config, "runtime = 'runc'") }, "", true},
		{"touched", func(t *testing.T) { check(t, os.Chtimes(places.config, time.Now(), time.Now())) }, "", true},
		{"its old time again", func(t *testing.T) {
			fi, err := os.Stat(places.config)
			check(t, err)
			write(t, places.config, "runtime = 'runc'")
			check(t, os.Chtimes(places.config, fi.ModTime(), fi.ModTime()))
		}, "", true},
		{"gone", func(t *testing.T) { check(t, os.Remove(places.config)) }, "", false},
		{"no note", func(t *testing.T) { check(t, os.Remove(places.route)) }, "", true},
		{"half a note", func(t *testing.T) { check(t, os.Truncate(places.route, int64(prefix+2))) }, "", true},
		{"of a stranger", func(t *testing.T) { check(t, os.Chown(places.route, 1, 1)) }, "", true},
		{"that others can write to", func(t *testing.T) { check(t, os.Chmod(places.route, 0o666)) }, "", true},
		{"a link", func(t *testing.T) {
			check(t, os.Rename(places.route, "/run/elsewhere"))
			check(t, os.Symlink("/run/elsewhere", places.route))
		}, "", true},
		{"of another version", func(t *testing.T) {
			text, err := os.ReadFile(places.route)
			check(t, err)
			write(t, places.route, strings.Replace(string(text), "berth 1", "berth 2", 1))
		}, "", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			host(t, "runtime = 'crun'\n")
			note(t, "crun")
			tc.change(t)
			if got := became(start, []string{path}); got != tc.want || (Look() != nil) != tc.wanted {
				t.Errorf("becomes %q, a note is wanted: %t", got, Look() != nil)
			}
		})
	}
}

func TestNoteRefuses(t *testing.T) {
	host(t, "")
	became([]string{"r", "start", "x"}, []string{path})
	c := Look()
	for _, name := range []string{"a\nb", "a\x00", "./runc", "bin/runc", "/a/../runc", strings.Repeat("a", 300)} {
		if c.Note(name) == nil {
			t.Errorf("%.20q was noted", name)
		}
	}
	write(t, places.config, "# changes")
	if c.Note("") == nil {
		t.Error("a configuration that has changed was noted")
	}
	if new := Look(); new.Note("") == nil {
		t.Error("a configuration that may change within the same tick was noted")
	}
}

func TestOwnProgramIsLeftToTheWrapper(t *testing.T) {
	host(t, "")
	note(t, "")
	self, err := os.Executable()
	check(t, err)
	check(t, os.Remove("/run/bin/crun"))
	check(t, os.Symlink(self, "/run/bin/crun"))
	if got := became([]string{"r", "start", "x"}, []string{path}); got != "" {
		t.Errorf("becomes %q, which is itself", got)
	}
}

// Wherever Begin goes on, the wrapper would have become the same program with the same
// words, and left ledger and bundles as they are.
func TestSameAsWrapper(t *testing.T) {
	check(t, setChecks("1500")) // most of them are left to the wrapper
	slow := build(t, runtime.GOARCH, "")
	configs := []string{"", "runtime = 'runc'\n", "runtime = '/run/other/runc'\n"}
	early := 0
	for i, name := range []string{"", "runc", "/run/other/runc"} {
		t.Run(fmt.Sprintf("runtime %q", name), func(t *testing.T) {
			host(t, configs[i])
			note(t, name)
			states(t)
			if got := became([]string{"r", "start", "x"}, []string{path}); got == "" {
				t.Fatal("nothing is early")
			}
			before := files(t)
			rapid.Check(t, func(rt *rapid.T) {
				args, env := line0.Draw(rt, "args"), envs.Draw(rt, "env")
				want := became(args, env)
				if want == "" {
					return
				}
				early++
				out := output(t, slow, args, env)
				if expected := strings.Join(append([]string{want}, args[1:]...), "|") + "|"; out != expected {
					rt.Fatalf("wrapper: %q; Begin: %q", out, expected)
				}
				if after := files(t); after != before {
					rt.Fatalf("wrapper has changed files:\n%s\n%s", before, after)
				}
			})
		})
	}
	if early < 150 {
		t.Errorf("only %d command lines were early: this proves little", early)
	}
}

var (
	ids   = rapid.SampledFrom([]string{"x", "one", "two", "both", "kept", "one", "two", "a/b", "..", "-x", ""})
	line0 = rapid.Custom(func(t *rapid.T) []string {
		args := []string{"berth-runtime"}
		global := rapid.SampledFrom([][]string{
			{"--root", "/run/state"},
			{"--root=/run/state"},
			{"--root", "/run/runc"},
			{"--root="},
			{"--root", "run"},
			{"-root", "/run/state"},
			{"--log", "one"},
			{"--log=/l"},
			{"--log-format", "json"},
			{"--debug"},
			{"--systemd-cgroup"},
			{"--systemd-cgroup=false"},
			{"--cgroup-manager=systemd"},
			{"--cgroup-manager", "cgroupfs"},
			{"--log-level", "debug"},
			{"--strange", "two"},
			{"--"},
			{"-"},
			{"--root", "/run/state"},
			{"--root=/run/state/"},
			{"--log", "/l"},
			{"--log-format=json"},
		})
		for _, words := range rapid.SliceOfN(global, 0, 2).Draw(t, "global") {
			args = append(args, words...)
		}
		args = append(args, rapid.SampledFrom([]string{
			"start", "state", "kill", "delete", "delete", "delete", "exec", "exec", "pause", "resume", "ps", "list",
		}).Draw(t, "verb"))
		after := rapid.OneOf(
			rapid.Map(ids, func(id string) []string { return []string{id} }),
			rapid.Map(ids, func(id string) []string { return []string{"--pid-file", id} }),
			rapid.Map(ids, func(id string) []string { return []string{"--process", id} }),
			rapid.SampledFrom([][]string{
				{"--force"}, {"-f"}, {"--all"}, {"-a"}, {"--detach"}, {"-d"}, {"-p"}, {"-t"}, {"--tty"}, {"KILL"}, {"--"}, {"--help"}, {"--x=y"},
			}),
		)
		for _, words := range rapid.SliceOfN(after, 0, 3).Draw(t, "after") {
			args = append(args, words...)
		}
		return args
	})
	envs = rapid.Custom(func(t *rapid.T) []string {
		return append(rapid.SliceOfN(rapid.SampledFrom([]string{
			"PATH=/run/other:/run/bin", "PATH=/run/none:/run/bin", "PATH=", "PATH=/run/bin:", "PATH=bin",
			"XDG_RUNTIME_DIR=/run", "XDG_RUNTIME_DIR=", "XDG_RUNTIME_DIR=/run/", "A", "=", "BERTH_CONFIG=",
		}), 0, 2).Draw(t, "environment"), rapid.SampledFrom([]string{path, path, "B=c"}).Draw(t, "last"))
	})
)

// states are containers of both runtimes.
func states(t *testing.T) {
	for _, root := range []string{"/run/runc", "/run/crun", "/run/state"} {
		if root != "/run/crun" {
			write(t, root+"/one/state.json", `{"config":{"labels":["bundle=/run/bundle"]}}`)
			write(t, root+"/both/state.json", `{"config":{"labels":["bundle=/run/bundle"]}}`)
			write(t, root+"/kept/state.json", `{"config":{"labels":["bundle=/run/kept"]}}`)
		}
		if root != "/run/runc" {
			write(t, root+"/two/status", `{"bundle":"/run/bundle"}`)
			write(t, root+"/both/status", `{"bundle":"/run/bundle"}`)
		}
	}
	write(t, "/run/bundle/config.json", "{}")
	write(t, "/run/kept/config.json", "{}")
	write(t, "/run/kept/config.json.berth", "{}")
}

// files is all that a delete could change.
func files(t *testing.T) string {
	var b strings.Builder
	for _, dir := range []string{"/run/berth", "/run/bundle", "/run/kept"} {
		entries, err := os.ReadDir(dir)
		check(t, err)
		for _, e := range entries {
			text, _ := os.ReadFile(filepath.Join(dir, e.Name()))
			fmt.Fprintf(&b, "%s/%s %q\n", dir, e.Name(), text)
		}
	}
	return b.String()
}

// output is what a program writes. Its environment is what is said, letter by letter:
// package os/exec would leave repeated names out.
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

func TestAlone(t *testing.T) {
	many := make([]string, len(vector))
	for i := range many {
		many[i] = "A=b"
	}
	for _, tc := range []struct {
		name      string
		args, env []string
		auxiliary []uintptr
		unchanged bool
	}{
		{name: "usual", args: []string{"a", "b"}, env: []string{"A=b", "GOMAXPROCS=7"}, auxiliary: []uintptr{3, 4, 5, 0, 6, 7, 0, 0}},
		{name: "no environment", args: []string{"a"}, auxiliary: []uintptr{3, 0, 0, 0}},
		{name: "no words", env: []string{"A=b"}, auxiliary: []uintptr{0, 0}},
		{name: "nothing", auxiliary: []uintptr{0, 0}},
		{name: "too much", args: many, auxiliary: []uintptr{0, 0}, unchanged: true},
		{name: "too much by one", args: many[:len(many)-5], auxiliary: []uintptr{0, 0}, unchanged: true},
		{name: "just enough", args: many[:len(many)-6], auxiliary: []uintptr{0, 0}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			stack, keep := stackOf(tc.args, tc.env)
			stack = append(stack, tc.auxiliary...)
			got := Alone(unsafe.Pointer(&stack[0]))
			if unchanged := got == unsafe.Pointer(&stack[0]); unchanged != tc.unchanged {
				t.Fatalf("unchanged: %t", unchanged)
			}
			if tc.unchanged {
				return
			}
			at := len(tc.args) + 2
			first := vector[at]
			if text := unix.BytePtrToString(*(**byte)(unsafe.Pointer(&first))); text != "GOMAXPROCS=1" {
				t.Errorf("the first variable is %q", text)
			}
			if rest := slices.Delete(slices.Clone(vector[:len(stack)+1]), at, at+1); !slices.Equal(rest, stack) {
				t.Errorf("the rest is %v, want %v", rest, stack)
			}
			runtime.KeepAlive(keep)
		})
	}
}

// build makes the program, with Begin at its entry or without.
func build(t *testing.T, arch, entry string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "berth-runtime")
	cmd := exec.Command("go", "build", "-ldflags", entry, "-o", program, "../../cmd/berth-runtime")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH="+arch)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return program
}

// The built program keeps the rules of the package's comment: of all that Begin can
// reach, nothing is called but functions of this package.
func TestCallsNothingOfGoRuntime(t *testing.T) {
	const pkg = "github.com/berth-gpu/berth/hook/early."
	for _, arch := range []string{"amd64", "arm64"} {
		t.Run(arch, func(t *testing.T) {
			out, err := exec.Command("go", "tool", "objdump", "-s", `hook/early\.`, build(t, arch, "-E main.entry")).Output()
			check(t, err)
			calls, in := map[string][]string{}, ""
			for line := range bytes.Lines(out) {
				f := strings.Fields(string(line))
				if len(f) > 1 && f[0] == "TEXT" {
					in = strings.TrimSuffix(f[1], "(SB)")
					calls[in] = []string{}
				}
				for _, word := range f {
					if name, ok := strings.CutSuffix(word, "(SB)"); ok && f[0] != "TEXT" && slices.ContainsFunc(f, isJump) {
						calls[in] = append(calls[in], name)
					}
				}
			}
			seen, open := map[string]bool{}, []string{pkg + "Begin", pkg + "Alone"}
			for len(open) > 0 {
				name := open[0]
				open = open[1:]
				if seen[name] {
					continue
				}
				seen[name] = true
				targets, ours := calls[name]
				if !ours {
					t.Errorf("%s is called", name)
				}
				open = append(open, targets...)
			}
			if !seen[pkg+"raw.abi0"] || len(seen) < 10 {
				t.Errorf("only %d functions were found", len(seen))
			}
		})
	}
}

func isJump(word string) bool {
	return strings.HasPrefix(word, "CALL") || word == "BL" || word == "B" || word == "JMP"
}

// setChecks says how often rapid tries.
func setChecks(n string) error { return flag.Set("rapid.checks", n) }
