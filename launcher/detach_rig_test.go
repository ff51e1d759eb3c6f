package launcher

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/logs"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// ledgerDevices hands out the one device of a machine by a real ledger.
type ledgerDevices struct {
	l    *ledger.Ledger
	wait time.Duration
}

func (b *ledgerDevices) Programs(context.Context, []string) (map[string]string, error) {
	return nil, nil
}

func (b *ledgerDevices) Acquire(ctx context.Context, o ledger.Owner, r request.Request, queued func()) (ledger.Lease, error) {
	inv := gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-11111111-2222-3333-4444-555555555555"}}}
	return b.l.Acquire(ctx, ledger.Ask{Owner: o, Request: r, Inventory: inv, Wait: b.wait, Waiting: func(ledger.BusyError) { queued() }})
}

func (b *ledgerDevices) Prepare(context.Context, ledger.Lease, *specs.Spec, *os.File) (Prepared, error) {
	return Prepared{}, nil
}

func (b *ledgerDevices) Divide(_ context.Context, l ledger.Lease) ([][]gpu.Device, error) {
	return [][]gpu.Device{l.Devices}, nil
}

func (b *ledgerDevices) CPUs(context.Context, ledger.Lease) (string, error) { return "", nil }

func (b *ledgerDevices) Release(ctx context.Context, l ledger.Lease) error {
	return b.l.Release(ctx, l.ID)
}

// built is the monitor's program.
var built struct {
	once sync.Once
	dir  string
	err  error
}

func monitorProgram(t *testing.T) string {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "berth-monitor"); built.err != nil {
			return
		}
		built.err = testutil.BuildPrograms(built.dir, "berth-monitor")
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return filepath.Join(built.dir, "berth-monitor")
}

// detached is a task whose launch was begun.
type detached struct {
	rig    rig
	cmd    *exec.Cmd // the launcher, and then the monitor
	status *os.File
	stderr *bytes.Buffer
	id     string
}

func (r rig) store() tasks.Store { return tasks.Store{Data: r.base.Data, State: r.base.State} }

// launch begins a detached task, and doesn't wait for it. It inherits more from the fourth
// descriptor on.
func (r rig) launch(line string, change func(*job), more ...*os.File) *detached {
	r.t.Helper()
	d := &detached{rig: r, stderr: &bytes.Buffer{}}
	d.cmd = r.command(r.job(func(j *job) {
		j.Detach, j.Lasting.Keep, j.Lasting.Monitor = true, true, monitorProgram(r.t)
		j.Command = []string{"sh", "-c", line}
		if change != nil {
			change(j)
		}
	}))
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	d.status = os.NewFile(uintptr(pair[0]), "status")
	theirs := os.NewFile(uintptr(pair[1]), "status")
	d.cmd.ExtraFiles = append([]*os.File{theirs}, more...)
	d.cmd.Stderr = d.stderr
	d.cmd.SysProcAttr.Setsid = true
	err = d.cmd.Start()
	theirs.Close()
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { d.status.Close(); d.cmd.Process.Kill() }) // it has ended, unless the test failed
	return d
}

// detach begins a task and waits until it has started.
func (r rig) detach(line string, change func(*job), more ...*os.File) *detached {
	r.t.Helper()
	d := r.launch(line, change, more...)
	got, err := bufio.NewReader(d.status).ReadString('\n')
	code, text, ok := control.ParseStatus(got)
	if !ok || code != 0 {
		r.t.Fatalf("launch says %q, %v; %s", got, err, d.stderr)
	}
	d.id = text
	r.t.Cleanup(func() { d.explain() })
	return d
}

// explain logs what the monitors wrote to their logs, if the test failed.
func (d *detached) explain() {
	if d.rig.t.Failed() {
		notes, _ := os.ReadFile(d.rig.store().Path(d.id, "monitor.log"))
		d.rig.t.Logf("task %s: monitors say %q", d.id, notes)
	}
}

// task is the task now.
func (d *detached) task() tasks.Task {
	d.rig.t.Helper()
	t, err := d.rig.store().Task(d.id)
	if err != nil {
		d.rig.t.Fatal(err)
	}
	return t
}

// end waits for the monitor that the launcher has become.
func (d *detached) end() tasks.Exit {
	d.rig.t.Helper()
	_ = d.cmd.Wait() // its code is the task's
	return d.exit()
}

// exit waits until the end of the task is on record, and returns that.
func (d *detached) exit() tasks.Exit {
	d.rig.t.Helper()
	var e *tasks.Exit
	d.rig.until("the task's exit is recorded", func() bool {
		var err error
		e, err = d.rig.store().Exit(d.id)
		return e != nil && err == nil
	})
	return *e
}

// until waits for something that has to happen.
func (r rig) until(what string, happened func() bool) {
	r.t.Helper()
	for end := time.Now().Add(time.Minute); !happened(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("in vain: %s", what)
		}
	}
}

// log is what the task has written: "out: " or "err: " before each line.
func (d *detached) log() string {
	d.rig.t.Helper()
	var b strings.Builder
	cut := map[logs.Stream]bool{}
	err := logs.Read(context.Background(), d.rig.store().Path(d.id, "log"), logs.Query{Tail: -1}, func(e logs.Entry) error {
		if !cut[e.Stream] {
			b.WriteString(map[logs.Stream]string{logs.Stdout: "out: ", logs.Stderr: "err: "}[e.Stream])
		}
		b.Write(e.Text)
		if cut[e.Stream] = e.Partial; !e.Partial {
			b.WriteByte('\n')
		}
		return nil
	})
	if err != nil {
		d.rig.t.Fatal(err)
	}
	return b.String()
}

// waitForLine waits until the task has written the line.
func (d *detached) waitForLine(line string) {
	d.rig.t.Helper()
	d.rig.until("the task writes "+line, func() bool { return strings.Contains(d.log(), line+"\n") })
}

// remove removes a task that has ended; its monitor may hold it for a moment.
func (d *detached) remove() {
	d.rig.t.Helper()
	var lock *os.File
	d.rig.until("the task's lock is free", func() bool {
		var err error
		lock, err = d.rig.store().Lock(d.id)
		return err == nil
	})
	defer lock.Close()
	if err := d.rig.store().Remove(d.id); err != nil {
		d.rig.t.Error(err)
	}
}

// killMonitor kills the task's monitor with SIGKILL, and waits for its end.
func (d *detached) killMonitor() {
	d.rig.t.Helper()
	l := d.task().Life
	if l == nil {
		d.rig.t.Fatal("the task has no life")
	}
	if err := unix.Kill(l.Monitor.PID, unix.SIGKILL); err != nil {
		d.rig.t.Fatal(err)
	}
	if l.Monitor.PID == d.cmd.Process.Pid {
		_ = d.cmd.Wait() // it was killed
	}
	d.rig.until("the monitor is dead", func() bool { return !d.rig.store().Lives(l.Monitor) })
}

func (r rig) readMonitorLogs() (all string) {
	files, _ := filepath.Glob(filepath.Join(r.base.Data, "tasks", "*", "monitor.log"))
	for _, f := range files {
		data, _ := os.ReadFile(f)
		all += f + ": " + string(data)
		names, _ := filepath.Glob(filepath.Dir(f) + "/*")
		all += fmt.Sprint(names)
	}
	return all
}

// adopt gives all tasks a monitor that have none.
func (r rig) adopt() {
	r.t.Helper()
	if got := r.run(r.job(func(j *job) { j.Adopt, j.Lasting.Monitor = true, monitorProgram(r.t) })); got != (result{}) {
		r.t.Fatalf("adopt: %+v; monitors say %q", got, r.readMonitorLogs())
	}
}

// sweep does what each launch begins with.
func (r rig) sweep() {
	r.t.Helper()
	if got := r.run(r.job(func(j *job) { j.Sweep, j.Lasting.Monitor = true, monitorProgram(r.t) })); got != (result{}) {
		r.t.Fatalf("sweep: %+v; monitors say %q", got, r.readMonitorLogs())
	}
}

// leases lists the holders of what the rig's ledger has.
func (r rig) leases() (holders []string) {
	r.t.Helper()
	v, err := r.ledger().View()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, l := range v.Leases {
		holders = append(holders, l.Owner.Container)
	}
	return holders
}

func (r rig) ledger() *ledger.Ledger {
	return ledger.Open(ledger.Options{Dir: r.base.State, Events: r.base.Data})
}
