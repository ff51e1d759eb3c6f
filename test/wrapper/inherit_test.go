package wrapper

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const untouched = `{"ociVersion":"1.0.2","root":{"path":"rootfs"},"process":{"cwd":"/","args":["true"]},
 "linux":{"resources":{"devices":[{"allow":false,"access":"rwm"}]}}}`

// allowAll has no device rules, so the wrapper restricts it before the exec.
const allowAll = `{"ociVersion":"1.0.2","root":{"path":"rootfs"},"process":{"cwd":"/","args":["true"]},"linux":{}}`

// The real runtime inherits everything as without the wrapper: arguments, environment (also
// repeated names), descriptors, limits, thread attributes; and it is the process that the engine
// has started. The exception are the signals and closed descriptors that Go's runtime changes: see
// keptByGo.
func TestNothingChangesOnTheWay(t *testing.T) {
	b := programs(t)
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "rootfs"), 0o755); err != nil {
		t.Fatal(err)
	}
	tests := []struct{ name, config, line string }{
		{"no words", untouched, ""},
		{"version", untouched, "--version"},
		{"exec", untouched, "--root /r exec --preserve-fds 2 c1 sh -c --"},
		{"unknown verb", untouched, "--odd flag frobnicate"},
		{"create", untouched, "--root R create --preserve-fds 2 --bundle B c1"},
		{"create of a rewritten bundle", allowAll, "--root R create --preserve-fds 2 --bundle B c1"},
		{"run", untouched, "--root R run -b B c1"},
		{"delete", untouched, "--root R delete c1"},
	}
	for _, tt := range tests {
		for _, stdin := range []string{"", "KEEP_STDIN=1"} {
			t.Run(tt.name+" "+stdin, func(t *testing.T) {
				if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(tt.config), 0o600); err != nil {
					t.Fatal(err)
				}
				config := configure(t, b.mirror, "")
				words := strings.Fields(strings.NewReplacer("B", dir, "R", dir+"/state").Replace(tt.line))
				start := func(program string) (string, int) {
					cmd := exec.Command(b.launcher, append(words, program)...)
					cmd.Env = []string{"BERTH_CONFIG_ENTRY=BERTH_CONFIG=" + config, stdin}
					return output(t, cmd)
				}
				direct, code := start(b.mirror)
				through, throughCode := start(b.wrapper)
				if diff := cmp.Diff(keptByGo(direct), through); diff != "" || code != 42 || throughCode != code {
					t.Errorf("codes %d and %d; without (-) and with (+) the wrapper:\n%s", code, throughCode, diff)
				}
			})
		}
	}
}

// A delete that releases a lease runs the real one as a child: that is another process, with
// another parent-death signal; everything else is the same.
func TestDeleteChildInheritsTheSame(t *testing.T) {
	b := programs(t)
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "rootfs"), 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "config.json")
	if err := os.WriteFile(file, []byte(allowAll), 0o600); err != nil {
		t.Fatal(err)
	}
	config := configure(t, b.mirror, "")
	start := func(program, line string) (string, int) {
		cmd := exec.Command(b.launcher, append(strings.Fields(line), program)...)
		cmd.Env = []string{"BERTH_CONFIG_ENTRY=BERTH_CONFIG=" + config}
		return output(t, cmd)
	}
	start(b.wrapper, "--root "+dir+"/state create --bundle "+dir+" c1")
	state := filepath.Join(dir, "state/c1/state.json")
	if err := os.MkdirAll(filepath.Dir(state), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(state, []byte(`{"config":{"labels":["bundle=`+dir+`"]}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	rewritten, err := os.ReadFile(file)
	if err != nil || string(rewritten) == allowAll {
		t.Fatalf("the bundle wasn't rewritten (%v), so there is nothing to give back", err)
	}
	line := "--root " + dir + "/state delete c1"
	direct, code := start(b.mirror, line)
	through, throughCode := start(b.wrapper, line)
	own := regexp.MustCompile(`(?m)^pdeathsig \d+$`)
	direct, through = own.ReplaceAllString(direct, ""), own.ReplaceAllString(through, "")
	if diff := cmp.Diff(strings.Replace(keptByGo(direct), "same process", "another process", 1), through); diff != "" || code != 42 || throughCode != code {
		t.Errorf("codes %d and %d; without (-) and with (+) the wrapper:\n%s", code, throughCode, diff)
	}
}

// withoutThreadSignals leaves signals 32 and 33 out of those that are ignored: they are the C
// library's own, and whatever started the tests may have left them ignored.
func withoutThreadSignals(text string) string {
	return regexp.MustCompile(`(?m)^SigIgn:\t[0-9a-f]+$`).ReplaceAllStringFunc(text, func(line string) string {
		var set uint64
		fmt.Sscanf(line, "SigIgn: %x", &set)
		return fmt.Sprintf("SigIgn:\t%016x", set&^(3<<31))
	})
}

// keptByGo is the mirror's output after a program in Go: signals that were ignored have the default
// disposition, except SIGHUP, SIGINT and those of job control; signals that end a program, SIGCHLD
// and SIGURG are not blocked; closed standard input is /dev/null.
func keptByGo(direct string) string {
	keep := func(text, name string, kept ...syscall.Signal) string {
		return regexp.MustCompile(`(?m)^`+name+`:\t[0-9a-f]+$`).ReplaceAllStringFunc(text, func(line string) string {
			var set, mask uint64
			fmt.Sscanf(line, name+": %x", &set)
			for _, sig := range kept {
				mask |= 1 << (sig - 1)
			}
			return fmt.Sprintf("%s:\t%016x", name, set&mask)
		})
	}
	text := keep(direct, "SigIgn", syscall.SIGHUP, syscall.SIGINT, syscall.SIGTSTP)
	text = keep(text, "SigBlk", syscall.SIGWINCH, syscall.SIGUSR2, 45)
	if !strings.Contains(text, "\nfd 0 ") {
		text = strings.Replace(text, "\nfd 1 ", "\nfd 0 /dev/null flags 0 8002\nfd 1 ", 1)
	}
	return text
}

// output returns the mirror's output. Process ids are replaced by whether they are that of the
// started process.
func output(t *testing.T, cmd *exec.Cmd) (string, int) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if stderr.Len() > 0 {
		t.Errorf("%v said: %s", cmd.Args, stderr.String())
	}
	process := "another process"
	if strings.Contains(stdout.String(), fmt.Sprintf("\npid %d ppid %d\n", cmd.Process.Pid, os.Getpid())) {
		process = "same process"
	}
	numbers := regexp.MustCompile(`(?m)^pid \d+ ppid \d+$`)
	return numbers.ReplaceAllString(withoutThreadSignals(stdout.String()), process), cmd.ProcessState.ExitCode()
}
