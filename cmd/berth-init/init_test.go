//go:build amd64 || arm64

package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// build builds the program as it is installed.
func build(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "berth-init")
	cmd := exec.Command("go", "build", "-ldflags", "-E main.entry", "-o", program, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return program
}

func TestCommand(t *testing.T) {
	program, dir := build(t), t.TempDir()
	for name, mode := range map[string]os.FileMode{"first/hello": 0o644, "second/hello": 0o755, "second/plain": 0o644, "second/broken": 0o755} {
		path, text := filepath.Join(dir, name), "#!/bin/sh\necho second \"$@\"\n"
		if name == "second/broken" {
			text = "\x00"
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), mode)); err != nil {
			t.Fatal(err)
		}
	}
	path := "PATH=" + dir + "/nosuch::" + dir + "/first:" + dir + "/second:/bin"
	type said struct {
		code     int
		out, err string
	}
	for name, tt := range map[string]struct {
		args []string
		env  []string
		want said
	}{
		"found":               {[]string{"--", "hello", "you there"}, []string{path}, said{0, "second you there\n", ""}},
		"without --":          {[]string{"hello"}, []string{path}, said{0, "second\n", ""}},
		"-- is a word too":    {[]string{"--", "hello", "--"}, []string{path}, said{0, "second --\n", ""}},
		"by its path":         {[]string{"--", dir + "/second/hello"}, nil, said{0, "second\n", ""}},
		"in the current one":  {[]string{"hello"}, []string{"A=b", "PATH="}, said{0, "second\n", ""}},
		"no PATH":             {[]string{"hello"}, []string{"A=b"}, said{0, "second\n", ""}},
		"code":                {[]string{"/bin/sh", "-c", "exit 7"}, nil, said{7, "", ""}},
		"signal":              {[]string{"/bin/sh", "-c", "kill -9 $$"}, nil, said{137, "", ""}},
		"not there":           {[]string{"nosuch"}, []string{path}, said{127, "", "berth-init: nosuch: not found or not executable\n"}},
		"not there, by path":  {[]string{"/nosuch/x"}, nil, said{127, "", "berth-init: /nosuch/x: not found or not executable\n"}},
		"not executable":      {[]string{"plain"}, []string{path}, said{126, "", "berth-init: plain: not found or not executable\n"}},
		"a directory":         {[]string{dir}, nil, said{126, "", "berth-init: " + dir + ": not found or not executable\n"}},
		"no program":          {[]string{"broken"}, []string{path}, said{126, "", "berth-init: broken: not found or not executable\n"}},
		"too long":            {[]string{strings.Repeat("x", 5000)}, []string{path}, said{127, "", "berth-init: " + strings.Repeat("x", 5000) + ": not found or not executable\n"}},
		"empty":               {[]string{""}, []string{"PATH=/bin"}, said{126, "", "berth-init: : not found or not executable\n"}},
		"nothing":             {[]string{"--"}, nil, said{125, "", "berth-init: no command\n"}},
		"nothing at all":      {nil, nil, said{125, "", "berth-init: no command\n"}},
		"the environment":     {[]string{"/bin/sh", "-c", "echo $A"}, []string{"A=b"}, said{0, "b\n", ""}},
		"no signal blocked":   {[]string{"/bin/grep", "SigBlk", "/proc/self/status"}, nil, said{0, "SigBlk:\t0000000000000000\n", ""}},
		"a group of its own":  {[]string{"/bin/sh", "-c", `read -r pid name state parent group rest </proc/$$/stat; test $pid = $group && echo yes`}, nil, said{0, "yes\n", ""}},
		"USR1 goes on":        {[]string{"/bin/sh", "-c", `trap "exit 5" USR1; kill -USR1 $PPID; while :; do sleep 0.01; done`}, []string{"PATH=/bin"}, said{5, "", ""}},
		"others are left out": {[]string{"/bin/sh", "-c", `trap "exit 5" TTIN URG; kill -TTIN $PPID; kill -URG $PPID; sleep 0.1`}, []string{"PATH=/bin"}, said{0, "", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errs bytes.Buffer
			cmd := exec.Command(program, tt.args...)
			cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = tt.env, dir+"/second", &out, &errs
			if tt.env == nil {
				cmd.Env = []string{}
			}
			err := cmd.Run()
			if code := cmd.ProcessState.ExitCode(); code < 0 {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, said{cmd.ProcessState.ExitCode(), out.String(), errs.String()}, cmp.AllowUnexported(said{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A signal that comes before there is a command reaches it.
func TestEarlySignal(t *testing.T) {
	program := build(t)
	runtime.LockOSThread() // who traces is a thread
	defer runtime.UnlockOSThread()
	cmd := exec.Command(program, "--", "sleep", "100")
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	var status syscall.WaitStatus
	stopped := func() {
		t.Helper()
		if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil || !status.Stopped() {
			t.Fatalf("status %x: %v", status, err)
		}
	}
	stopped() // before its first instruction
	for range 4 {
		if err := syscall.PtraceSyscall(pid, 0); err != nil {
			t.Fatal(err)
		}
		stopped() // before and after each of its first two system calls
	}
	if err := errors.Join(syscall.Kill(pid, syscall.SIGTERM), syscall.PtraceDetach(pid)); err != nil {
		t.Fatal(err)
	}
	if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil || !status.Exited() || status.ExitStatus() != 128+int(syscall.SIGTERM) {
		t.Errorf("status %x, %v: it passed nothing on", status, err)
	}
	_ = cmd.Wait() // it has been waited for
}

// Nothing of Go's runtime is called: it isn't there.
func TestCallsNothingOfGoRuntime(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		program := filepath.Join(t.TempDir(), arch)
		cmd := exec.Command("go", "build", "-ldflags", "-E main.entry", "-o", program, ".")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH="+arch)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		out, err := exec.Command("go", "tool", "objdump", "-s", `^main\.`, program).Output()
		if err != nil {
			t.Fatal(err)
		}
		calls, function := 0, ""
		for line := range strings.Lines(string(out)) {
			if name, ok := strings.CutPrefix(line, "TEXT "); ok {
				function, _, _ = strings.Cut(name, "(")
			}
			_, callee, ok := strings.Cut(line, "CALL ")
			if !ok || function == "main.main" || strings.Contains(line, "<autogenerated>") {
				continue
			}
			calls++
			if !strings.HasPrefix(callee, "main.") && !strings.HasPrefix(callee, "CX") && !strings.HasPrefix(callee, "(R1)") {
				t.Errorf("%s: %s calls %s", arch, function, callee)
			}
		}
		if calls < 20 {
			t.Errorf("%s: only %d calls were seen", arch, calls)
		}
	}
}
