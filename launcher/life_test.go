package launcher

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/spec"
	"github.com/berth-gpu/berth/test/image/oci"
)

// started is a launch whose container has said that it runs.
type started struct {
	cmd    *exec.Cmd
	stdout *bufio.Reader
	stderr *bytes.Buffer
}

// startReady starts a shell line that prints "ready" and waits for that.
func (r rig) startReady(line string, change func(*job)) started {
	r.t.Helper()
	s := started{stderr: &bytes.Buffer{}}
	s.cmd = r.command(r.job(func(j *job) {
		j.Command = []string{"sh", "-c", line}
		if change != nil {
			change(j)
		}
	}))
	s.cmd.Stderr = s.stderr
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { s.cmd.Process.Kill() }) // if the test failed in between
	s.stdout = bufio.NewReader(out)
	if got, err := s.stdout.ReadString('\n'); got != "ready\n" {
		r.t.Fatalf("container said %q, %v; %s", got, err, s.stderr)
	}
	return s
}

func (s started) send(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

func TestSignals(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		for _, tt := range []struct {
			name string
			line string
			sig  syscall.Signal
			code int
		}{
			{"handled", "trap 'exit 3' TERM; echo ready; while :; do sleep 0.01; done", unix.SIGTERM, 3},
			{"handled, another one", "trap 'exit 4' USR1; echo ready; while :; do sleep 0.01; done", unix.SIGUSR1, 4},
			{"pid 1 without a handler", "echo ready; exec sleep 1000", unix.SIGINT, 130},
			{"the terminal went", "echo ready; exec sleep 1000", unix.SIGHUP, 129},
		} {
			t.Run(tt.name, func(t *testing.T) {
				r := rig{t: t, base: r.base}
				s := r.startReady(tt.line, nil)
				// A shell that is still about to become sleep has handlers of its own.
				if strings.Contains(tt.line, "exec sleep") {
					waitForProgram(t, r.initPID(), "sleep")
				}
				stuck := time.AfterFunc(time.Minute, func() { _ = s.cmd.Process.Kill() }) // it may have ended just now
				defer stuck.Stop()
				s.send(t, tt.sig)
				if code := exitStatus(t, s.cmd.Wait()); code != tt.code || s.stderr.Len() > 0 {
					t.Errorf("code %d, want %d; %s", code, tt.code, s.stderr)
				}
			})
		}
	})
}

// waitForProgram waits until the process executes the program of that name.
func waitForProgram(t *testing.T, pid, name string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		comm, err := os.ReadFile("/proc/" + pid + "/comm")
		if err == nil && strings.TrimSpace(string(comm)) == name {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("process %s is %q, want %s; %v", pid, comm, name, err)
		}
	}
}

// A runtime writes the pid file after the container has begun: until then, a signal waits for it.
func TestSignalBeforePIDFile(t *testing.T) {
	r := newAnyRig(t)
	r.base.Runtime = "crun" // which is the task's parent, so that the launcher itself doesn't need the file
	s := r.startReady("trap 'exit 6' USR1; echo ready; while :; do sleep 0.01; done", nil)
	r.initPID()
	id := filepath.Base(r.tasks()[0])
	file := r.store().Paths(id).PIDFile()
	if err := os.Rename(file, file+".hidden"); err != nil {
		t.Fatal(err)
	}
	task, err := r.store().Task(id)
	if err != nil {
		t.Fatal(err)
	}
	sent := make(chan error, 1)
	go func() { sent <- control.Signal(t.Context(), r.store(), task, unix.SIGUSR1) }()
	select {
	case err := <-sent:
		t.Fatalf("it doesn't wait: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	if err := os.Rename(file+".hidden", file); err != nil {
		t.Fatal(err)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
	if code := exitStatus(t, s.cmd.Wait()); code != 6 {
		t.Errorf("code %d, want 6; %s", code, s.stderr)
	}
}

// A signal that comes between the container's creation and the start of its program ends the task at once. At that
// moment its first process is runc, which has handlers for all signals.
func TestSignalBeforeProgram(t *testing.T) {
	r := newAnyRig(t)
	dir := t.TempDir()
	script := filepath.Join(dir, "slow")
	text := `#!/bin/bash
words=()
for word; do
	case $word in
	run) words+=(create) run=true ;;
	--detach) ;;
	*/pid) file=$word words+=("$word") ;;
	*) words+=("$word") ;;
	esac
done
` + r.base.Runtime + ` "${words[@]}" || exit
[ -n "$run" ] || exit 0
: >` + dir + `/created
while read -r pid name state rest </proc/$(<"$file")/stat && [ "$state" != Z ]; do sleep 0.01; done
`
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, sig := range []syscall.Signal{unix.SIGTERM, unix.SIGHUP, unix.SIGINT, unix.SIGUSR1} {
		cmd := r.command(r.job(func(j *job) { j.Command, j.Runtime = []string{"sleep", "1000"}, script }))
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		r.until("the container is created", func() bool { return os.Remove(dir+"/created") == nil })
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		lost := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() }) // it may have ended just now
		if code := exitStatus(t, cmd.Wait()); code != 128+int(sig) {
			t.Errorf("%v: code %d", sig, code)
		}
		lost.Stop()
	}
}

// A signal that pid 1 ignores on purpose stays ignored.
func TestSignalIgnored(t *testing.T) {
	r := newAnyRig(t)
	s := r.startReady("trap '' INT; trap 'exit 5' TERM; echo ready; while :; do sleep 0.01; done", nil)
	s.send(t, unix.SIGINT)
	s.send(t, unix.SIGTERM)
	if code := exitStatus(t, s.cmd.Wait()); code != 5 {
		t.Errorf("code %d, want 5; %s", code, s.stderr)
	}
}

// ^C at a terminal goes to the launcher's whole process group. The task isn't in it, and so gets it
// once, from the launcher.
func TestSignalOnce(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		s := r.startReady("trap 'exit 8' INT; echo ready; while :; do sleep 0.01; done", nil)
		init, err := strconv.Atoi(r.initPID())
		if err != nil {
			t.Fatal(err)
		}
		own, err1 := unix.Getpgid(s.cmd.Process.Pid)
		its, err2 := unix.Getpgid(init)
		if err1 != nil || err2 != nil || own == its {
			t.Errorf("launcher in group %d, task in %d; %v, %v", own, its, err1, err2)
		}
		s.send(t, unix.SIGINT)
		if code := exitStatus(t, s.cmd.Wait()); code != 8 {
			t.Errorf("code %d, want 8", code)
		}
	})
}

// When the launcher's context ends, the task is asked to end, by its stop signal: SIGWINCH
// too, which else says that a terminal has another size.
func TestContextEnds(t *testing.T) {
	for _, name := range []string{"TERM", "WINCH"} {
		t.Run(name, func(t *testing.T) {
			r := newAnyRig(t)
			if r.base.Cgroups == "v1" {
				r.base.Cgroups = "" // this process keeps its own view
			}
			ctx, cancel := context.WithCancel(context.Background())
			out, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer out.Close()
			go func() {
				if _, err := bufio.NewReader(out).ReadString('\n'); err == nil {
					cancel()
				}
			}()
			code, err := Run(ctx, Options{
				Image: r.base.Image, Runtime: "runc", State: r.base.State, Data: r.base.Data, Parent: r.base.Parent, Stdout: w,
				Settings:  spec.Settings{Command: []string{"sh", "-c", "trap 'exit 6' " + name + "; echo ready; while :; do sleep 0.01; done"}},
				Lifecycle: Lifecycle{StopSignal: name, StopTimeout: -1},
			})
			if code != 6 || err != nil {
				t.Errorf("code %d, %v, want 6", code, err)
			}
			w.Close()
		})
	}
}

// A launcher that is killed leaves its container alone and running. The next
// launch leaves it alone too, until it has ended; then it cleans up.
func TestKilledLauncher(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		pipe := filepath.Join(t.TempDir(), "pipe")
		if err := unix.Mkfifo(pipe, 0o600); err != nil {
			t.Fatal(err)
		}
		s := r.startReady("echo ready; read x </pipe; exit 0", func(j *job) { j.Volumes = []string{pipe + ":/pipe"} })
		s.send(t, unix.SIGKILL)
		// Not cmd.Wait: the container still holds the outputs.
		if _, err := s.cmd.Process.Wait(); err != nil {
			t.Fatal(err)
		}
		tasks := r.tasks()
		if len(tasks) != 1 {
			t.Fatalf("tasks %q after the launcher was killed", tasks)
		}
		if got := r.sh("echo x", nil); got.stdout != "x\n" {
			t.Errorf("the next launch: %+v", got)
		}
		if now := r.tasks(); len(now) != 1 || now[0] != tasks[0] {
			t.Fatalf("tasks %q, want the running %q to be left alone", now, tasks)
		}
		if err := os.WriteFile(pipe, []byte("end\n"), 0); err != nil {
			t.Fatal(err)
		}
		if rest, err := s.stdout.ReadString('\n'); err == nil {
			t.Errorf("unexpected output %q", rest)
		}
		r.untilSwept()
	})
}

// A container that can't be ended keeps its lease, and the launcher says so.
func TestImmortalContainer(t *testing.T) {
	for _, k := range usableKinds(t) {
		if k.runtime != "crun" || k.version != "v1" { // whose freezer holds also who is killed
			continue
		}
		r := newRig(t, k)
		s := r.startReady("echo ready; exec sleep 1000", func(j *job) { j.Devices = "free" })
		pid := r.initPID()
		runtime := parentOf(t, pid)
		freezer := filepath.Join("/sys/fs/cgroup/freezer", r.base.Parent, filepath.Base(r.tasks()[0]), "freezer.state")
		freeze := func(state string) {
			if err := os.WriteFile(freezer, []byte(state), 0); err != nil {
				t.Error(err)
			}
		}
		freeze("FROZEN")
		killPID(t, runtime)
		// Not cmd.Wait: the container still holds the outputs.
		end, err := s.cmd.Process.Wait()
		freeze("THAWED")
		if err != nil || end.Success() {
			t.Errorf("the launcher ended with %v, %v", end, err)
		}
		calls, err := os.ReadFile(r.base.Record)
		if err != nil || strings.Contains(string(calls), "release") {
			t.Errorf("calls %q, %v", calls, err)
		}
		if len(r.tasks()) != 1 {
			t.Error("nothing is left for a sweep to find it by")
		}
		r.untilSwept() // what the launcher sent has killed it by now
	}
}

// When runtime and container are killed too, all that's left is data.
func TestKilledTogether(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		s := r.startReady("echo ready; exec sleep 1000", nil)
		pid := r.initPID()
		runtime := parentOf(t, pid)
		s.send(t, unix.SIGKILL)
		killPID(t, runtime)
		killPID(t, pid)
		s.cmd.Wait() // says that it was killed
		r.untilSwept()
	})
}

// kill -9 at a random moment of a launch; after some of these and one launch
// more, nothing is left.
func TestKilledAnywhere(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		layout := filepath.Join(t.TempDir(), "layout")
		if err := oci.Write(layout, oci.Image{Layers: []oci.Layer{{Tar: oci.Tar(busyboxFiles(t)...), Compression: "gzip"}}}); err != nil {
			t.Fatal(err)
		}
		r.base.Image = layout
		for n := range 12 {
			cmd := r.command(r.job(func(j *job) { j.Command = []string{"true"} }))
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Duration(n*n) * time.Millisecond / 2)
			cmd.Process.Kill() // it may have ended already
			cmd.Wait()
		}
		r.untilSwept()
	})
}

// untilSwept launches until no task is left: what outlived its launcher needs a
// moment to end.
func (r rig) untilSwept() {
	r.t.Helper()
	for range 100 {
		if got := r.sh("echo x", nil); got.stdout != "x\n" || got.stderr != "" {
			r.t.Fatalf("launch: %+v", got)
		}
		if len(r.tasks()) == 0 {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	r.t.Fatalf("tasks %q are never swept", r.tasks())
}

func (r rig) tasks() []string {
	tasks, _ := filepath.Glob(filepath.Join(r.base.Data, "tasks", "*"))
	return tasks
}

// initPID waits for the pid file, which runc writes after the container began.
func (r rig) initPID() string {
	r.t.Helper()
	for range 500 {
		data, err := os.ReadFile(r.store().Paths(filepath.Base(r.tasks()[0])).PIDFile())
		if err == nil && len(data) > 0 {
			return strings.TrimSpace(string(data))
		}
		time.Sleep(10 * time.Millisecond)
	}
	r.t.Fatal("the runtime writes no pid file")
	return ""
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func parentOf(t *testing.T, pid string) string {
	t.Helper()
	for line := range strings.Lines(readFile(t, "/proc/"+pid+"/status")) {
		if ppid, ok := strings.CutPrefix(line, "PPid:"); ok {
			return strings.TrimSpace(ppid)
		}
	}
	t.Fatal("no parent")
	return ""
}

func killPID(t *testing.T, pid string) {
	t.Helper()
	var n int
	if _, err := fmt.Sscan(pid, &n); err != nil || n < 2 {
		t.Fatalf("pid %q: %v", pid, err)
	}
	if err := unix.Kill(n, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// Sixteen tasks on an empty store: each layer is unpacked once, and all run.
func TestConcurrentColdStart(t *testing.T) {
	r := newAnyRig(t)
	layout := filepath.Join(t.TempDir(), "layout")
	var many []oci.File
	for n := range 500 {
		many = append(many, oci.File{Name: fmt.Sprintf("data-%d", n), Body: strings.Repeat("x", 1000)})
	}
	err := oci.Write(layout, oci.Image{Layers: []oci.Layer{
		{Tar: oci.Tar(busyboxFiles(t)...), Compression: "gzip"}, {Tar: oci.Tar(many...), Compression: "zstd"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	results := make([]result, 16)
	var wg sync.WaitGroup
	for n := range results {
		wg.Go(func() {
			results[n] = r.run(r.job(func(j *job) { j.Image, j.Command = layout, []string{"sh", "-c", "ls / | grep -c data-; exit 3"} }))
		})
	}
	wg.Wait()
	for n, got := range results {
		if want := (result{code: 3, stdout: "500\n"}); got != want {
			t.Errorf("task %d: %+v, want %+v", n, got, want)
		}
	}
}
