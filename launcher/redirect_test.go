package launcher

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/process"
)

// harm tries to change the mode and the content of the files that it was given.
const harm = `for n in 0 1 2; do chmod 4777 /proc/self/fd/$n; echo harmed >/proc/self/fd/$n; done; chmod 4777 /dev/stdout`

// A task is given what was redirected for it, and not the files themselves: it could write
// where it is only to read, and change their modes.
func TestRedirectedFilesStayOutside(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		d := r.detach("sleep 1000", nil)
		defer d.killAndRemove()
		for _, inside := range []string{"", d.id} {
			for _, input := range []bool{false, true} {
				t.Run(fmt.Sprintf("exec %v, input %v", inside != "", input), func(t *testing.T) {
					dir := t.TempDir()
					paths := [4]string{"in", "out", "err", "null"}
					for i, name := range paths {
						paths[i] = filepath.Join(dir, name)
						var err error
						if name == "null" {
							err = unix.Mknod(paths[i], unix.S_IFCHR|0o644, int(unix.Mkdev(1, 3)))
						} else {
							err = os.WriteFile(paths[i], []byte("before\n"), 0o644)
						}
						if err != nil {
							t.Fatal(err)
						}
					}
					cmd := r.command(r.job(func(j *job) {
						j.Command, j.Interactive, j.Exec, j.Null = []string{"sh", "-c", harm}, input, inside, paths[3]
					}))
					cmd.Stdin = openFile(t, paths[0], os.O_RDONLY)
					cmd.Stdout = openFile(t, paths[1], os.O_WRONLY|os.O_APPEND)
					cmd.Stderr = openFile(t, paths[2], os.O_WRONLY|os.O_APPEND)
					exitStatus(t, cmd.Run())
					for i, path := range paths {
						fi, err := os.Stat(path)
						if err != nil {
							t.Fatal(err)
						}
						if fi.Mode().Perm() != 0o644 || fi.Mode()&os.ModeSetuid != 0 {
							t.Errorf("%s is %v", path, fi.Mode())
						}
						if text := ""; i < 3 {
							if text = readFile(t, path); i == 0 && text != "before\n" || !strings.HasPrefix(text, "before\n") {
								t.Errorf("%s says %q", path, text)
							}
						}
					}
				})
			}
		}
	})
}

// A task gets pipes of its own in place of the caller's pipes and sockets: it could read what others
// write to a pipe, shut a socket down, and keep its reader from the end.
func TestCallersPipesStayOutside(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		d := r.detach("sleep 1000", nil)
		defer d.killAndRemove()
		pipe := func() (reader, writer *os.File) {
			reader, writer, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			return reader, writer
		}
		socket := func() (reader, writer *os.File) {
			fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			return os.NewFile(uintptr(fds[0]), "socket"), os.NewFile(uintptr(fds[1]), "socket")
		}
		for _, inside := range []string{"", d.id} {
			for _, tt := range []struct {
				name string
				make func() (reader, writer *os.File)
			}{{"pipe", pipe}, {"socket", socket}} {
				t.Run(fmt.Sprintf("exec %v, %s", inside != "", tt.name), func(t *testing.T) {
					stdin, typed := tt.make()
					said, stdout := tt.make()
					complained, stderr := tt.make()
					caller := []string{target(t, stdin), target(t, stdout), target(t, stderr)}
					cmd := r.command(r.job(func(j *job) {
						j.Command, j.Interactive, j.Exec = []string{"sh", "-c", "for n in 0 1 2; do readlink /proc/$$/fd/$n; done; cat; echo err >&2; exit 3"}, true, inside
					}))
					cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stderr
					if err := cmd.Start(); err != nil {
						t.Fatal(err)
					}
					for _, f := range []*os.File{stdin, stdout, stderr} {
						f.Close()
					}
					if _, err := typed.WriteString("typed\n"); err != nil {
						t.Fatal(err)
					}
					typed.Close()
					out, err := io.ReadAll(said)
					if err != nil {
						t.Fatal(err)
					}
					errors, err := io.ReadAll(complained)
					if err != nil {
						t.Fatal(err)
					}
					code, lines := exitStatus(t, cmd.Wait()), strings.Split(string(out), "\n")
					if len(lines) != 5 || lines[3] != "typed" || string(errors) != "err\n" || code != 3 {
						t.Fatalf("code %d: %q, %q", code, out, errors)
					}
					for _, got := range lines[:3] {
						if !strings.HasPrefix(got, "pipe:[") || slices.Contains(caller, got) {
							t.Errorf("it has %s; the caller has %s", got, caller)
						}
					}
				})
			}
		}
	})
}

// target is the name of a pipe or a socket.
func target(t *testing.T, f *os.File) string {
	t.Helper()
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// A process outside of the container to which a task has passed its output keeps neither the launch
// nor the reader of its output from the end.
func TestPassedOutput(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		cmd := r.command(r.job(func(j *job) { j.Command = []string{"sh", "-c", "echo ready; exec sleep 1000"} }))
		out, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stdout = w
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		w.Close()
		if err := out.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		said := bufio.NewReader(out)
		if line, err := said.ReadString('\n'); line != "ready\n" {
			t.Fatal(line, err)
		}
		init := r.init()
		passed := openFile(t, fmt.Sprintf("/proc/%s/fd/1", init), os.O_WRONLY)
		killPID(t, init)
		if _, err := io.ReadAll(said); err != nil {
			t.Error(err)
			passed.Close()
		}
		if code := exitStatus(t, cmd.Wait()); code != 137 {
			t.Errorf("code %d, want 137", code)
		}
		passed.Close() // it was open until here
	})
}

// A task that stops each process that joins its container doesn't keep a command from ending.
func TestStoppedExec(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		d := r.detach("while :; do kill -STOP -1; done", nil)
		defer d.killAndRemove()
		init := d.task().Life.Init.PID
		for _, sig := range []syscall.Signal{unix.SIGINT, unix.SIGTERM} {
			cmd := r.command(r.job(func(j *job) { j.Command, j.Exec = []string{"sleep", "1000"}, d.id }))
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			var joined []int
			r.until("a process that has joined is stopped", func() bool {
				joined = othersInNamespace(t, init)
				return slices.ContainsFunc(joined, func(pid int) bool { return process.Stopped("/proc", pid) })
			})
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			ended := make(chan int, 1)
			go func() { _ = cmd.Wait(); ended <- cmd.ProcessState.ExitCode() }() // ExitCode tells
			select {
			case code := <-ended:
				if code != 128+int(sig) {
					t.Errorf("%v: code %d", sig, code)
				}
			case <-time.After(30 * time.Second):
				t.Errorf("%v: it hasn't ended", sig)
				_ = cmd.Process.Kill()
				<-ended
			}
			r.until("nothing has stayed", func() bool { return len(othersInNamespace(t, init)) == 0 })
		}
	})
}

// A runtime that hangs before it has created the container doesn't keep a launch from ending.
func TestHangingRuntime(t *testing.T) {
	r := newAnyRig(t)
	dir := t.TempDir()
	script := filepath.Join(dir, "hanging")
	text := "#!/bin/sh\ncase \"$*\" in\n*' run '*) : >" + dir + "/runs; sleep 1000; exit 0\nesac\nexec " + r.base.Runtime + " \"$@\"\n"
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := r.command(r.job(func(j *job) { j.Command, j.Runtime = []string{"true"}, script }))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r.until("the runtime runs", func() bool { return unix.Access(dir+"/runs", unix.F_OK) == nil })
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := exitStatus(t, cmd.Wait()); code != 143 {
		t.Errorf("code %d", code)
	}
}

// othersInNamespace returns the other processes in a process's PID namespace.
func othersInNamespace(t *testing.T, of int) (pids []int) {
	t.Helper()
	want, err := process.Namespace("/proc", of)
	if err != nil {
		t.Fatal(err)
	}
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range all {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || pid == of {
			continue
		}
		if got, err := process.Namespace("/proc", pid); err == nil && got == want {
			pids = append(pids, pid)
		}
	}
	return pids
}

// init returns the pid of the only container's init.
func (r rig) init() string {
	r.t.Helper()
	var pid string
	r.until("the runtime has written the pid", func() bool {
		files, err := filepath.Glob(filepath.Join(r.base.Data, "tasks", "*", "bundle", "pid"))
		if err != nil || len(files) != 1 {
			return false
		}
		pid = strings.TrimSpace(readFile(r.t, files[0]))
		return pid != ""
	})
	return pid
}

// The host's null is no task's: its mode is that of everybody's.
func TestNullStaysOutside(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		null := filepath.Join(t.TempDir(), "null")
		whole := func(what string) {
			t.Helper()
			fi, err := os.Stat(null)
			if err != nil {
				t.Fatal(err)
			}
			if fi.Mode().Perm() != 0o666 {
				t.Errorf("%s: the host's null is %v", what, fi.Mode())
			}
			if err := os.Chmod(null, 0o666); err != nil {
				t.Fatal(err)
			}
		}
		if err := unix.Mknod(null, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(null, 0o666); err != nil {
			t.Fatal(err)
		}
		const line = "for n in 0 1 2; do chmod 600 /proc/self/fd/$n; done; chmod 600 /dev/null; echo done >/done"
		d := r.detach(line+"; sleep 1000", func(j *job) { j.Null = null })
		defer d.killAndRemove()
		d.hasWritten("/done")
		whole("run -d")
		for _, tt := range []struct {
			name   string
			change func(*job)
		}{
			{"run", func(*job) {}},
			{"exec", func(j *job) { j.Exec = d.id }},
			{"exec -d", func(j *job) { j.Exec, j.Detach = d.id, true }},
		} {
			if got := r.sh("rm -f /done", func(j *job) { j.Exec = d.id }); got.code != 0 {
				t.Fatalf("%+v", got)
			}
			cmd := r.command(r.job(func(j *job) {
				j.Command, j.Null = []string{"sh", "-c", line}, null
				tt.change(j)
			}))
			// These are the host's null, too.
			cmd.Stdin, cmd.Stdout, cmd.Stderr = openFile(t, null, os.O_RDWR), openFile(t, null, os.O_RDWR), openFile(t, null, os.O_RDWR)
			if code := exitStatus(t, cmd.Run()); code != 0 {
				t.Errorf("%s: code %d", tt.name, code)
			}
			if tt.name != "run" {
				d.hasWritten("/done")
			}
			whole(tt.name)
		}
	})
}

// hasWritten waits until a file is in the task's root.
func (d *detached) hasWritten(path string) {
	d.rig.t.Helper()
	d.rig.until(path+" is there", func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/%d/root%s", d.task().Life.Init.PID, path))
		return err == nil
	})
}

// Redirected output and input arrive complete and in order, with and without a monitor that copies.
func TestRedirectedFilesAreWhole(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		d := r.detach("sleep 1000", nil)
		defer d.killAndRemove()
		const many = 300000
		want := "before\n"
		for i := range 2000 {
			want += fmt.Sprintf("out %d\nerr %d\n", i, i)
		}
		for _, inside := range []string{"", d.id} {
			t.Run(fmt.Sprintf("exec %v", inside != ""), func(t *testing.T) {
				run := func(line string, input bool, stdin, stdout, stderr *os.File) (int, string) {
					t.Helper()
					var said bytes.Buffer
					cmd := r.command(r.job(func(j *job) {
						j.Command, j.Interactive, j.Exec = []string{"sh", "-c", line}, input, inside
					}))
					cmd.Stderr = &said
					if stdin != nil {
						cmd.Stdin = stdin
					}
					if stdout != nil {
						cmd.Stdout = stdout
					}
					if stderr != nil {
						cmd.Stderr = stderr
					}
					return exitStatus(t, cmd.Run()), said.String()
				}
				fresh := func(text string) string {
					path := filepath.Join(t.TempDir(), "file")
					if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
						t.Fatal(err)
					}
					return path
				}
				t.Run("both to one file, in their order", func(t *testing.T) {
					path := fresh("before\n")
					f := openFile(t, path, os.O_WRONLY|os.O_APPEND)
					code, _ := run("i=0; while test $i -lt 2000; do echo out $i; echo err $i >&2; i=$((i+1)); done; exit 5", false, nil, f, f)
					got := readFile(t, path)
					want := want
					if r.base.Runtime == "runc" && inside == "" { // which mixes them itself
						got, want = sortLines(got), sortLines(want)
					}
					if code != 5 || got != want {
						t.Errorf("code %d, %d bytes, want %d", code, len(got), len(want))
					}
				})
				t.Run("both to one pipe, in their order", func(t *testing.T) {
					reader, w, err := os.Pipe()
					if err != nil {
						t.Fatal(err)
					}
					read := make(chan string)
					go func() {
						got, _ := io.ReadAll(reader) // a part isn't what is wanted
						read <- string(got)
					}()
					code, _ := run("echo before; i=0; while test $i -lt 2000; do echo out $i; echo err $i >&2; i=$((i+1)); done; exit 5", false, nil, w, w)
					w.Close()
					if got := <-read; code != 5 || got != want {
						t.Errorf("code %d, %d bytes, want %d", code, len(got), len(want))
					}
				})
				t.Run("a pipe whose reader goes", func(t *testing.T) {
					reader, w, err := os.Pipe()
					if err != nil {
						t.Fatal(err)
					}
					go func() {
						_, _ = reader.Read(make([]byte, 10)) // the test fails otherwise, too
						_ = reader.Close()
					}()
					if code, said := run("sh -c 'while echo x; do :; done'; echo $? >&2", false, nil, w, nil); code != 0 || !strings.HasSuffix(said, "141\n") {
						t.Errorf("code %d: %s", code, said)
					}
				})
				t.Run("from where the file stands", func(t *testing.T) {
					path := fresh("0123456789")
					f := openFile(t, path, os.O_RDWR)
					if _, err := f.Seek(5, 0); err != nil {
						t.Fatal(err)
					}
					if code, said := run("printf abc", false, nil, f, nil); code != 0 || said != "" {
						t.Errorf("code %d: %s", code, said)
					}
					if _, err := f.WriteString("!"); err != nil {
						t.Fatal(err)
					}
					if got := readFile(t, path); got != "01234abc!9" {
						t.Errorf("%q", got)
					}
				})
				t.Run("much, through and through", func(t *testing.T) {
					from, to := fresh(strings.Repeat("0123456789\n", many)), fresh("")
					code, said := run("cat", true, openFile(t, from, os.O_RDONLY), openFile(t, to, os.O_WRONLY), nil)
					if code != 0 || said != "" || readFile(t, to) != readFile(t, from) {
						t.Errorf("code %d: %s", code, said)
					}
				})
				t.Run("input that nobody reads", func(t *testing.T) {
					from := fresh(strings.Repeat("0123456789\n", many))
					if code, said := run("exit 3", true, openFile(t, from, os.O_RDONLY), nil, nil); code != 3 || said != "" {
						t.Errorf("code %d: %s", code, said)
					}
				})
				t.Run("input that can't be read", func(t *testing.T) {
					if code, said := run("cat", true, openFile(t, t.TempDir(), os.O_RDONLY), nil, nil); code != 125 || !strings.Contains(said, "is a directory") {
						t.Errorf("code %d: %s", code, said)
					}
				})
				t.Run("a full disk", func(t *testing.T) {
					code, said := run("while echo x; do :; done", false, nil, openFile(t, "/dev/full", os.O_WRONLY), nil)
					if code != 125 || !strings.Contains(said, "no space left on device") {
						t.Errorf("code %d: %s", code, said)
					}
				})
				t.Run("a named pipe whose reader goes", func(t *testing.T) {
					path := filepath.Join(t.TempDir(), "fifo")
					if err := unix.Mkfifo(path, 0o600); err != nil {
						t.Fatal(err)
					}
					reader := openFile(t, path, os.O_RDWR)
					w := openFile(t, path, os.O_WRONLY)
					go func() {
						_, _ = reader.Read(make([]byte, 10)) // the test fails otherwise, too
						_ = reader.Close()
					}()
					if code, said := run("sh -c 'while echo x; do :; done'; echo $? >&2", false, nil, w, nil); code != 0 || !strings.HasSuffix(said, "141\n") {
						t.Errorf("code %d: %s", code, said)
					}
				})
				t.Run("what is left behind isn't waited for", func(t *testing.T) {
					path := fresh("")
					code, said := run("while echo x; do :; done 2>/dev/null & head -c 200000 /dev/zero; echo end >&2", false, nil, openFile(t, path, os.O_WRONLY), nil)
					if got := readFile(t, path); code != 0 || said != "end\n" || strings.Count(got, "\x00") != 200000 {
						t.Errorf("code %d: %s; %d bytes", code, said, len(got))
					}
				})
			})
		}
	})
}

func sortLines(text string) string {
	lines := strings.Split(text, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
