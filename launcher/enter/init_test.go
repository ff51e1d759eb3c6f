package enter

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// initArguments is an environment variable of this test's program when it is the first process of a PID namespace.
const initArguments = "BERTH_TEST_INIT"

// runInit runs the test's program as the first process of a PID namespace.
func runInit() {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGUSR1)
	code, err := RunAsInit("/bin/sh", []string{"sh", "-c", os.Getenv(initArguments)}, append(os.Environ(), initArguments+"="), signals)
	if err != nil {
		fmt.Println(err)
		os.Exit(99)
	}
	os.Exit(code)
}

// startInit starts a shell script below an init process.
func startInit(t *testing.T, script string) (cmd *exec.Cmd, out *bytes.Buffer) {
	t.Helper()
	out = &bytes.Buffer{}
	cmd = exec.Command(os.Args[0], "-test.run=^TestRunAsInit$")
	cmd.Env = append(os.Environ(), initArguments+"="+script)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}, GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // it has ended, unless the test fails
	return cmd, out
}

func exitOf(t *testing.T, err error) int {
	t.Helper()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if err == nil {
		return 0
	}
	return exit.ExitCode()
}

// TestRunAsInit: an init process ends with its program's exit code, reaps orphans, and alone leaves the process
// group of its parent.
func TestRunAsInit(t *testing.T) {
	if os.Getenv(initArguments) != "" {
		runInit()
	}
	const zombies = `mount -t proc proc /proc; n=0; while grep -q -s '^State:.Z' /proc/[0-9]*/status && [ $n != 300 ]; do sleep 0.01; n=$((n + 1)); done; [ $n != 300 ] && echo "$PPID"`
	for _, tt := range []struct {
		name, script string
		code         int
		out          string
	}{
		{"exit code", "exit 7", 7, ""},
		{"signal", "kill -KILL $$", 137, ""},
		{"orphans", "sh -c 'exit 3 & exec sleep 0.1'; " + zombies, 0, "1\n"},
		{"descendants end", "sleep 1000 & exit 5", 5, ""},
		{"process groups", "mount -t proc proc /proc; cut -d' ' -f5 /proc/1/stat /proc/$$/stat", 0, "1\n0\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cmd, out := startInit(t, tt.script)
			if code := exitOf(t, cmd.Wait()); code != tt.code || out.String() != tt.out {
				t.Errorf("exit code %d, output %q; want %d, %q", code, out, tt.code, tt.out)
			}
		})
	}
}

// TestInitSignals: an init process passes on signals.
func TestInitSignals(t *testing.T) {
	name := filepath.Join(t.TempDir(), "out")
	cmd, out := startInit(t, "exec >"+name+"; trap 'echo INT' INT; trap 'exit 9' TERM; echo ready; while :; do sleep 0.01; done")
	for _, tt := range []struct {
		want string
		next syscall.Signal
	}{{"ready\n", unix.SIGINT}, {"ready\nINT\n", unix.SIGTERM}} {
		waitForContent(t, name, tt.want)
		if err := cmd.Process.Signal(tt.next); err != nil {
			t.Fatal(err)
		}
	}
	if code := exitOf(t, cmd.Wait()); code != 9 || out.Len() > 0 {
		t.Errorf("exit code %d, output %q", code, out)
	}
}

// waitForContent waits until a file has a content.
func waitForContent(t *testing.T, name, want string) {
	t.Helper()
	for range 1000 {
		if data, err := os.ReadFile(name); err == nil && string(data) == want {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("%s hasn't %q", name, want)
}
