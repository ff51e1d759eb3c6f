//go:build amd64 || arm64

package early

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Which deletes begin at the entry: those of which there is something to give back.
func TestWhatBegins(t *testing.T) {
	host(t, "")
	note(t, "runc")
	write(t, places.ledger, `{"id":"0123456789ab","container":"leased"}`)
	write(t, "/run/kept/config.json.berth", "{}")
	write(t, "/run/runc/plain/state.json", `{"config":{"labels":["bundle=/run/bundle"]}}`)
	write(t, "/run/runc/leased/state.json", `{"config":{"labels":["bundle=/run/bundle"]}}`)
	write(t, "/run/runc/kept/state.json", `{"config":{"labels":["bundle=/run/kept"]}}`)
	write(t, "/run/runc/odd/state.json", `{"config":{}}`)
	write(t, "/run/crun/keptbycrun/status", `{"bundle" : "/run/kept"}`)
	write(t, "/run/runc/large/state.json", strings.Repeat(" ", 1<<18))
	for _, tc := range []struct {
		name, args, program string
		want                verdict
	}{
		{"nothing to give back", "delete plain", "/run/bin/runc", becomes},
		{"a lease", "delete leased", "/run/bin/runc", starts},
		{"a lease, by force", "--root /run/runc delete --force leased", "/run/bin/runc", starts},
		{"a lease of a container that the runtime doesn't know", "--root /run/other delete leased", "", left},
		{"a rewritten bundle", "delete kept", "/run/bin/runc", starts},
		{"a rewritten bundle, crun", "delete keptbycrun", "/run/bin/crun", starts},
		{"a state without a bundle", "delete odd", "/run/bin/runc", starts},
		{"a state that is too large", "delete large", "", left},
		{"strange letters", "delete lea+sed", "", left},
		{"another verb", "kill leased", "/run/bin/runc", becomes},
	} {
		program, got := judged(append([]string{"r"}, strings.Fields(tc.args)...), []string{path})
		if program != tc.program || got != tc.want { // and no t.Run: it would be on another thread
			t.Errorf("%s: %q, %d; want %q, %d", tc.name, program, got, tc.program, tc.want)
		}
	}
	if d := (Delete{ledger: []byte(`{"id":"0123456789ab"}`)}); !d.Known("0123456789ab") || d.Known("0123456789a") || d.Known("") {
		t.Error("which leases were known isn't known")
	}
}

// A delete that has begun before Go's runtime ends like one that hasn't: with the same
// words for the real runtime, the same exit code, the same files.
func TestBegunSameAsWrapper(t *testing.T) {
	host(t, "runtime = 'runc'\n")
	note(t, "runc")
	slow, fast := build(t, runtime.GOARCH, ""), build(t, runtime.GOARCH, "-E main.entry")
	for _, name := range []string{"/run/bin/runc", "/run/bin/crun"} {
		write(t, name, "#!/bin/sh\nprintf '%s|' \"$0\" \"$@\"\nif [ -e /run/signal ]; then kill -TERM $$; fi\n"+
			"[ -e /run/stays ] || /bin/rm -rf /run/runc/kept /run/crun/keptbycrun /run/runc/leased\nexit $(/bin/cat /run/code)\n")
	}
	runs := func(program string, args []string) string {
		cmd := &exec.Cmd{Path: program, Args: args, Env: []string{path, "A=b", "A=c"}}
		out, err := cmd.CombinedOutput()
		if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		code := cmd.ProcessState.ExitCode()
		if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			code = 128 + int(status.Signal()) // as who waits for a runtime says it
		}
		return fmt.Sprintf("%s %d\n%s", out, code, files(t))
	}
	begun := 0
	for _, id := range []string{"kept", "keptbycrun", "leased", "nobody"} {
		for _, world := range []string{"", "code", "stays", "code stays", "signal", "no ledger"} {
			again := func() {
				states(t)
				write(t, "/run/runc/leased/state.json", `{"config":{"labels":["bundle=/run/bundle"]}}`)
				write(t, "/run/crun/keptbycrun/status", `{"bundle":"/run/kept"}`)
				write(t, places.ledger, `{"container":"leased"}`)
				write(t, "/run/code", "0")
				for _, name := range []string{"/run/stays", "/run/signal"} {
					check(t, os.RemoveAll(name))
				}
				for word := range strings.FieldsSeq(world) {
					write(t, "/run/"+word, "3")
				}
				if world == "no ledger" {
					check(t, os.Remove(places.ledger))
				}
			}
			args := []string{"berth-runtime", "--log", "/l", "delete", "--force", id}
			again()
			if _, v := judged(args, []string{path}); v == starts {
				begun++
			}
			want := runs(slow, args)
			again()
			if got := runs(fast, args); got != want {
				t.Errorf("%s, %s: begun: %s\nwrapper: %s", id, world, got, want)
			}
		}
	}
	if begun < 10 {
		t.Errorf("only %d deletes have begun: this proves little", begun)
	}
}

// What can't be started, or waited for, is left to the wrapper.
func TestStart(t *testing.T) {
	stack, keep := stackOf([]string{"r"}, []string{path})
	argv := uintptr(unsafe.Pointer(&stack[1]))
	runs := func(program string) int {
		copy(work.program.text[:], program+"\x00")
		start(argv, argv+2*word)
		runtime.KeepAlive(keep)
		return work.child
	}
	defer func() { work.child = 0 }()
	// The runtime of tests has a handler for it, which a new program hasn't.
	var before, action [4]uintptr
	disposition := func(set, old *[4]uintptr) {
		raw(unix.SYS_RT_SIGACTION, uintptr(unix.SIGCHLD), uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(old)), 8)
	}
	disposition(nil, &before)
	defer func() { disposition(&before, nil); signal.Reset(syscall.SIGCHLD) }()
	if runs("/bin/true") != 0 {
		t.Error("a child was started although its end is handled")
	}
	disposition(&action, nil)
	pid := runs("/bin/true")
	if pid == 0 {
		t.Fatal("/bin/true wasn't started")
	}
	var status unix.WaitStatus
	if _, err := unix.Wait4(pid, &status, 0, nil); err != nil || status.ExitStatus() != 0 {
		t.Errorf("%v, exit code %d", err, status.ExitStatus())
	}
	if runs("/no/where") != 0 || work.failed != -int(unix.ENOENT) {
		t.Errorf("child %d, error %d of a program that isn't there", work.child, work.failed)
	}
}
