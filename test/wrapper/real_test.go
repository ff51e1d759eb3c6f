package wrapper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/isolation/cgroup"
)

// world is a bundle of busybox and a runtime's state directory.
type world struct {
	t       *testing.T
	runtime string // the real one
	dir     string
	config  string // of berth
	id      string
}

func realRuntime(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("needs %s: %v", name, err)
	}
	return path
}

// newWorld makes a bundle whose only device rule is that of runc's own spec:
// nothing allowed, so that berth has no reason to change it.
func newWorld(t *testing.T, runtime, id string, args ...string) *world {
	t.Helper()
	w := &world{t: t, runtime: realRuntime(t, runtime), dir: t.TempDir(), id: id}
	w.config = configure(t, w.runtime, "")
	for _, d := range []string{"rootfs/bin", "rootfs/proc", "rootfs/dev", "rootfs/sys"} {
		w.must(os.MkdirAll(filepath.Join(w.dir, d), 0o755))
	}
	busybox, err := os.ReadFile(realRuntime(t, "busybox"))
	w.must(err)
	w.must(os.WriteFile(filepath.Join(w.dir, "rootfs/bin/busybox"), busybox, 0o755))
	cmd := exec.Command(realRuntime(t, "runc"), "spec")
	cmd.Dir = w.dir
	w.must(cmd.Run())
	w.edit(func(s *specs.Spec) {
		s.Process.Terminal = false
		s.Process.Args = append([]string{"/bin/busybox"}, args...)
		s.Linux.CgroupsPath = "/berth-test-" + id
		s.Linux.Resources.Pids = nil
	})
	w.removeLeftovers() // a killed run of the tests has left it
	t.Cleanup(func() {
		_ = exec.Command(w.runtime, w.global("delete", "--force", id)...).Run()
		w.removeLeftovers()
	})
	return w
}

// removeLeftovers ends the processes in the container's cgroup and removes it. A killed runtime may leave a
// process there that it doesn't know itself.
func (w *world) removeLeftovers() {
	w.t.Helper()
	path := "/berth-test-" + w.id
	h, err := cgroup.Detect("/sys/fs/cgroup")
	w.must(err)
	trees, err := h.ListTrees()
	w.must(err)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.t.Context()), time.Minute) // the test may have ended
	defer cancel()
	for _, tree := range trees {
		w.must(tree.Kill(ctx, path))
		w.must(tree.Remove(ctx, path))
	}
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) edit(change func(*specs.Spec)) {
	w.t.Helper()
	path := filepath.Join(w.dir, "config.json")
	data, err := os.ReadFile(path)
	w.must(err)
	var spec specs.Spec
	w.must(json.Unmarshal(data, &spec))
	change(&spec)
	data, err = json.MarshalIndent(spec, "", "\t")
	w.must(err)
	w.must(os.WriteFile(path, data, 0o600))
}

func (w *world) global(words ...string) []string {
	return append([]string{"--root", filepath.Join(w.dir, "state"), "--log", filepath.Join(w.dir, "log"), "--log-format", "json"}, words...)
}

// said is the result of a command.
type said struct {
	Code     int
	Out, Err string
	Log      string
}

// run calls a program as an engine does. Numbers, times and paths of the world
// don't count.
func (w *world) run(program, stdin string, words ...string) said {
	w.t.Helper()
	_ = os.Remove(filepath.Join(w.dir, "log"))
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute) // a hang fails the test
	defer cancel()
	cmd := exec.CommandContext(ctx, program, words...)
	cmd.Env = append(os.Environ(), "BERTH_CONFIG="+w.config)
	cmd.Dir = w.dir
	cmd.Stdin = strings.NewReader(stdin)
	// Files, not pipes: a container that continues holds them open.
	out, err := os.Create(filepath.Join(w.dir, "out"))
	w.must(err)
	errs, err := os.Create(filepath.Join(w.dir, "err"))
	w.must(err)
	cmd.Stdout, cmd.Stderr = out, errs
	err = cmd.Run()
	w.must(errors.Join(out.Close(), errs.Close()))
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		w.t.Fatal(err)
	}
	return said{Code: cmd.ProcessState.ExitCode(), Out: w.plain("out"), Err: w.plain("err"), Log: w.plain("log")}
}

var (
	numbers = regexp.MustCompile(`[0-9]+`)
	spaces  = regexp.MustCompile(` +`)
)

func (w *world) plain(name string) string {
	data, err := os.ReadFile(filepath.Join(w.dir, name))
	if errors.Is(err, os.ErrNotExist) {
		return ""
	}
	w.must(err)
	text := strings.ReplaceAll(string(data), w.dir, "DIR")
	// A process during its exec has no arguments yet, only a name.
	text = strings.ReplaceAll(text, "[busybox]", "sleep N")
	return spaces.ReplaceAllString(numbers.ReplaceAllString(text, "N"), " ")
}

// One container's life, each call once with the runtime itself and once through berth, which has
// nothing to change here.
func TestLifeIsTheSame(t *testing.T) {
	const script = "exec ID /bin/busybox sh -c echo${IFS}out;echo${IFS}err>&2;exit${IFS}3"
	calls := []struct {
		line  string
		stdin string
	}{
		{"--version", ""},
		{"features", ""},
		{"--help", ""},
		{"", ""},
		{"frobnicate x", ""},
		{"create --help", ""},
		{"@ list", ""},
		{"@ list --format json", ""},
		{"@ state ID", ""},
		{"@ start ID", ""},
		{"@ delete ID", ""},
		{"@ delete --force ID", ""},
		{"@ create --pid-file DIR/pid ID", ""},
		{"@ create ID", ""}, // it exists already
		{"@ state ID", ""},
		{"@ list -q", ""},
		{"@ start ID", ""},
		{"@ start ID", ""},
		{"@ ps ID", ""},
		{"@ " + script, ""},
		{"@ exec --env X=1 ID /bin/busybox env", ""},
		{"@ exec ID /bin/busybox cat", "through the pipe"},
		{"@ exec ID /none", ""},
		{"@ update --cpu-share 100 ID", ""},
		{"@ events --stats ID", ""},
		{"@ pause ID", ""},
		{"@ state ID", ""},
		{"@ resume ID", ""},
		{"@ kill ID BOGUS", ""},
		{"@ delete ID", ""},
		{"@ kill ID KILL", ""},
		{"@ delete --force ID", ""},
		{"@ delete --force ID", ""},
		{"@ list", ""},
		{"@ run ID", "a line\n"},
		{"@ delete ID", ""},
		{"@ spec", ""}, // there is one already
	}
	for _, runtime := range []string{"runc", "crun"} {
		t.Run(runtime, func(t *testing.T) {
			b := programs(t)
			id := "same-" + runtime
			life := func(through bool) map[string]said {
				w := newWorld(t, runtime, id, "sh", "-c", "if read x; then echo $x; exit 5; fi; sleep 1000")
				program := w.runtime
				if through {
					program = b.wrapper
				}
				before, err := os.Stat(filepath.Join(w.dir, "config.json"))
				w.must(err)
				all := map[string]said{}
				for i, call := range calls {
					line := strings.NewReplacer("DIR", w.dir, "ID", id).Replace(call.line)
					words := strings.Fields(line)
					if strings.HasPrefix(line, "@") {
						words = w.global(words[1:]...)
					}
					all[fmt.Sprintf("%02d %s", i, call.line)] = w.run(program, call.stdin, words...)
				}
				after, err := os.Stat(filepath.Join(w.dir, "config.json"))
				w.must(err)
				if !os.SameFile(before, after) {
					t.Error("config.json was rewritten")
				}
				w.must(os.RemoveAll(filepath.Join(w.dir, "state")))
				return all
			}
			direct, through := life(false), life(true)
			if diff := cmp.Diff(direct, through); diff != "" {
				t.Errorf("without (-) and with (+) the wrapper:\n%s", diff)
			}
			if ran, inside := direct["34 @ run ID"], direct["19 @ "+script]; ran.Code != 5 || inside.Code != 3 || inside.Err != "err\n" {
				t.Errorf("the container didn't live as it should: %+v, %+v", ran, inside)
			}
		})
	}
}

// Descriptors that an engine passes on reach the container's process.
func TestPreservedDescriptors(t *testing.T) {
	for _, runtime := range []string{"runc", "crun"} {
		t.Run(runtime, func(t *testing.T) {
			b := programs(t)
			w := newWorld(t, runtime, "fds-"+runtime, "sh", "-c", "echo $LISTEN_FDS; cat <&3; cat <&4; cat <&5")
			direct, through := w.withDescriptors(w.runtime), w.withDescriptors(b.wrapper)
			if direct != through || !strings.Contains(direct, "content 0\n") {
				t.Errorf("without the wrapper %q, with it %q", direct, through)
			}
		})
	}
}

func (w *world) withDescriptors(program string) string {
	w.t.Helper()
	cmd := exec.Command(program, w.global("run", "--preserve-fds", "3", w.id)...)
	cmd.Dir = w.dir
	cmd.Env = append(os.Environ(), "BERTH_CONFIG="+w.config, "LISTEN_FDS=2")
	for i := range 3 {
		path := filepath.Join(w.dir, fmt.Sprint("file", i))
		w.must(os.WriteFile(path, fmt.Appendf(nil, "content %d\n", i), 0o600))
		f, err := os.Open(path)
		w.must(err)
		defer f.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	}
	out, err := cmd.CombinedOutput()
	return fmt.Sprint(string(out), err)
}
