package launcher

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/ociruntime"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// slowRuntime makes a runtime that says when it is about to make a container, or has, by
// the file here, and goes on when there is the file on.
func slowRuntime(t *testing.T, runtime string, before bool) (path, here, on string) {
	t.Helper()
	dir := t.TempDir()
	path, here, on = filepath.Join(dir, filepath.Base(runtime)), filepath.Join(dir, "here"), filepath.Join(dir, "on")
	wait := fmt.Sprintf(`case " $* " in *" create "*) >%s; until [ -e %s ]; do sleep 0.01; done;; esac`, here, on)
	script := "#!/bin/sh\n" + runtime + ` "$@" || exit` + "\n" + wait + "\n"
	if before {
		script = "#!/bin/sh\n" + wait + "\nexec " + runtime + ` "$@"` + "\n"
	}
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path, here, on
}

// A monitor that is killed when its container was made and not started leaves a process
// that waits for ever, and holds the task's device. The next command ends that process, and so do
// stop and rm of the task.
func TestKilledBeforeItsFirstLife(t *testing.T) {
	for _, next := range []string{"adopt", "sweep", "stop", "remove"} {
		t.Run(next, func(t *testing.T) {
			onAllRigs(t, func(t *testing.T, r rig) {
				path, made, _ := slowRuntime(t, ociruntime.LookUp(r.base.Runtime), false)
				next := next
				d := r.launch("exec sleep 1000", func(j *job) { j.Devices, j.Runtime = "ledger", path })
				r.until("the container is made", func() bool { _, err := os.Lstat(made); return err == nil })
				if err := d.cmd.Process.Signal(unix.SIGKILL); err != nil {
					t.Fatal(err)
				}
				_ = d.cmd.Wait() // it was killed
				all, err := r.store().List()
				if err != nil || len(all) != 1 {
					t.Fatalf("%+v, %v", all, err)
				}
				d.id = all[0].ID
				if outside := r.base.Cgroups == "v1"; outside && !all[0].Abandoned() || all[0].Orphan() {
					t.Errorf("abandoned %v, orphan %v", all[0].Abandoned(), all[0].Orphan())
				} else if !outside && (next == "stop" || next == "remove") {
					next = "adopt" // from here the other cgroups are seen
				}
				switch next {
				case "adopt":
					r.adopt()
				case "sweep":
					r.sweep()
				case "stop":
					if err := control.Stop(t.Context(), r.store(), all[0], 0); err != nil {
						t.Error(err)
					}
				case "remove":
					if err := control.Remove(t.Context(), r.store(), all[0], true); err != nil {
						t.Error(err)
					}
				}
				if ids, err := r.store().IDs(); err != nil || len(ids) > 0 {
					t.Errorf("tasks %q, %v", ids, err)
				}
				d.nothing()
				r.deviceIsFree()
			})
		})
	}
}

// A monitor that is killed while the next life is being made leaves a runtime at work. The
// one that adopts the task ends it before it makes that life anew.
func TestKilledBeforeItsNextLife(t *testing.T) {
	onAllRigs(t, func(t *testing.T, r rig) {
		pipe, volume := makeFIFO(t)
		path, here, on := slowRuntime(t, ociruntime.LookUp(r.base.Runtime), true)
		createFile(t, on)
		d := r.detach(hear+"echo x >>/n; wc -l </n; read x <&3; exit 4", func(j *job) {
			j.Devices, j.Runtime, j.Volumes, j.Lasting.Restart = "ledger", path, []string{volume}, tasks.Restart{Policy: "on-failure"}
		})
		d.waitForLine("out: 1")
		removeFile(t, on)
		removeFile(t, here)
		writeWord(t, pipe, "end")
		r.until("the next life is being made", func() bool { _, err := os.Lstat(here); return err == nil })
		d.killMonitor()
		removeFile(t, here)
		r.adopt()
		r.until("it is being made anew", func() bool { _, err := os.Lstat(here); return err == nil })
		createFile(t, on)
		d.waitForLine("out: 2")
		if got := d.task().Life; got.Restarts != 1 {
			t.Errorf("%d restarts", got.Restarts)
		}
		writeWord(t, pipe, "end")
		d.waitForLine("out: 3")
		if err := r.store().MarkStopped(d.id); err != nil {
			t.Fatal(err)
		}
		writeWord(t, pipe, "end")
		expectExit(t, d.exit(), tasks.Exit{Code: 4, Restarts: 2})
		d.nothing()
		d.remove()
	})
}

func createFile(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

func removeFile(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

// The next monitor may be killed too, before it has adopted the task: adoption is tried again.
func TestAdoptionIsTriedAgain(t *testing.T) {
	r := newAnyRig(t)
	d := r.detach("exec sleep 1000", nil)
	d.killMonitor()
	dir := t.TempDir()
	program := filepath.Join(dir, "berth-monitor")
	script := fmt.Sprintf("#!/bin/sh\n[ -e %s/x ] || { >%s/x; kill -9 $$; }\nexec %s \"$@\"\n", dir, dir, monitorProgram(t))
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	if got := r.run(r.job(func(j *job) { j.Adopt, j.Lasting.Monitor = true, program })); got != (result{}) {
		t.Errorf("adopt: %+v", got)
	}
	if !d.task().Held {
		t.Error("it has no monitor")
	}
	if err := unix.Kill(d.task().Life.Monitor.PID, unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	d.exit()
	d.remove()
}
