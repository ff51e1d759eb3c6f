package cli

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// result is how a command ended.
type result struct {
	t              *testing.T
	args           []string
	code           int
	stdout, stderr string
}

// is compares exit code, standard output and standard error, the last two with
// what differs from run to run replaced (see same).
func (r result) is(code int, stdout, stderr string) {
	r.t.Helper()
	stdout, stderr = normalize(stdout), normalize(stderr)
	if r.code != code || normalize(r.stdout) != stdout || normalize(r.stderr) != stderr {
		r.t.Errorf("%s\n got code %d, stdout:\n%s\nstderr:\n%s\nwant code %d, stdout:\n%s\nstderr:\n%s",
			strings.Join(r.args, " "), r.code, normalize(r.stdout), normalize(r.stderr), code, stdout, stderr)
	}
}

// fails checks a failure with one line on standard error and no output.
func (r result) fails(code int, line string) {
	r.t.Helper()
	r.is(code, "", line+"\n")
}

// ok returns the standard output of a command that must have succeeded.
func (r result) ok() string {
	r.t.Helper()
	if r.code != 0 {
		r.t.Fatalf("%s: code %d\nstdout: %s\nstderr: %s", strings.Join(r.args, " "), r.code, r.stdout, r.stderr)
	}
	return r.stdout
}

var changing = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`(?m)^ERROR: ld\.so: object .*\n`), ""},                     // the node's preload, out of a user's sight
	{regexp.MustCompile(`(?m)^berth: (another task is )?unpacking layer .*\n`), ""}, // where that takes more than a second
	{regexp.MustCompile(`20\d\d-\d\d-\d\d \d\d:\d\d`), "TIME"},
	{regexp.MustCompile(`20\d{6}T\d{6}\.\d{3}`), "STAMP"},
	{regexp.MustCompile(`(^|[^-0-9a-f])[0-9a-f]{12}\b`), "${1}ID"},
	{regexp.MustCompile(`  (\d+s|\d+m\d\ds)  `), "  AGE  "},
	{regexp.MustCompile(`ends in \S+`), "ends in AGE"},
	{regexp.MustCompile(`(process|maker \(process|init \(process) \d+`), "$1 PID"},
	{regexp.MustCompile(`(waited|for|FOR) \d+(ms|s|m\d\ds|\.\d+s)`), "$1 AGE"},
}

// normalize replaces the times, ids and paths of this run.
func normalize(text string) string {
	text = strings.ReplaceAll(text, image(), "IMAGE")
	text = strings.ReplaceAll(text, programs, "PROGRAMS")
	for _, c := range changing {
		text = c.pattern.ReplaceAllString(text, c.with)
	}
	return text
}

// process is a command that runs.
type process struct {
	*exec.Cmd
	n              *node
	args           []string
	stdout, stderr output
	done           chan struct{}
}

func (n *node) start(args ...string) *process {
	n.t.Helper()
	return n.startWith(nil, args...)
}

// startWith lets prepare change the command before it starts.
func (n *node) startWith(prepare func(*exec.Cmd), args ...string) *process {
	n.t.Helper()
	p := &process{Cmd: n.command(args...), n: n, args: args, stdout: newOutput(n.t), stderr: newOutput(n.t), done: make(chan struct{})}
	p.Stdout, p.Stderr = p.stdout.File, p.stderr.File
	if prepare != nil {
		prepare(p.Cmd)
	}
	check(n.t, p.Start())
	go func() {
		_ = p.Wait() // ProcessState has the outcome
		close(p.done)
	}()
	n.t.Cleanup(func() {
		_ = p.Process.Kill()
		<-p.done
	})
	return p
}

func (p *process) wait() result {
	p.n.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		p.n.t.Fatalf("%s doesn't end\nstdout: %s\nstderr: %s", strings.Join(p.args, " "), p.stdout.String(), p.stderr.String())
	}
	code := p.ProcessState.ExitCode()
	if s := p.ProcessState.Sys().(syscall.WaitStatus); s.Signaled() {
		code = -int(s.Signal())
	}
	return result{p.n.t, p.args, code, p.stdout.String(), p.stderr.String()}
}

func (p *process) signal(s syscall.Signal) {
	p.n.t.Helper()
	check(p.n.t, p.Process.Signal(s))
}

// says waits until standard output contains the text.
func (p *process) says(text string) {
	p.n.t.Helper()
	eventually(p.n.t, fmt.Sprintf("%s says %q", strings.Join(p.args, " "), text), func() bool {
		return strings.Contains(p.stdout.String(), text) || p.ended()
	})
	if !strings.Contains(p.stdout.String(), text) {
		p.n.t.Fatalf("%s ended without saying %q: %s%s", strings.Join(p.args, " "), text, p.stdout.String(), p.stderr.String())
	}
}

// warns waits until standard error contains the text.
func (p *process) warns(text string) {
	p.n.t.Helper()
	eventually(p.n.t, fmt.Sprintf("%s warns %q", strings.Join(p.args, " "), text), func() bool {
		return strings.Contains(p.stderr.String(), text) || p.ended()
	})
	if !strings.Contains(p.stderr.String(), text) {
		p.n.t.Fatalf("%s ended without warning %q: %s%s", strings.Join(p.args, " "), text, p.stdout.String(), p.stderr.String())
	}
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// output is a file that is read while a command writes to it. With a pipe, Wait would also wait for
// background processes of the command.
type output struct {
	t *testing.T
	*os.File
}

func newOutput(t *testing.T) output {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "output-")
	check(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return output{t, f}
}

func (o output) String() string {
	o.t.Helper()
	data, err := os.ReadFile(o.Name())
	check(o.t, err)
	return string(data)
}
