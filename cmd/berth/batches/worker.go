package batches

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/launcher/batch"
)

// WorkerCommand is the hidden verb that runs tasks of a batch below the lease of its berth alloc.
func WorkerCommand() *cli.Command {
	return &cli.Command{
		Name: workerVerb, Hidden: true, SkipFlagParsing: true,
		Action: func(c *cli.Context) error {
			if c.NArg() != 2 {
				return verb.UsageError{Err: errors.New("only berth map starts berth map-worker")}
			}
			held, err := batch.Store{Dir: c.Args().Get(0)}.HoldWorker(c.Args().Get(1))
			if err != nil {
				return err
			}
			defer held.Close()
			env := append(os.Environ(), "BERTH_CONFIG="+c.String("config")) // for tasks in containers
			return batch.Serve(os.Stdin, os.Stdout, os.Getenv("BERTH_DEVICES"), "/proc", env)
		},
	}
}

// workerProcess is a worker: berth alloc, and below its lease the worker command.
type workerProcess struct {
	cmd   *exec.Cmd
	store batch.Store
	batch *batch.Batch
	slot  int
	jobs  chan batch.Job
	once  sync.Once
	ready atomic.Bool
}

// starter starts the workers of a batch.
type starter struct {
	store  batch.Store
	batch  *batch.Batch
	config string // path of the configuration file
	// program is this program's path, for berth alloc.
	program string
	// index returns the indexes of devices, for the journal and messages.
	index func(uuids string) string
}

// workerWords are the verb of a batch's workers and its arguments.
func workerWords(store batch.Store, name string) []string {
	return []string{workerVerb, store.Dir, name}
}

const workerVerb = "map-worker"

// startWorker is [batch.Runner]'s Start.
func (s starter) startWorker(request string, slot int, events chan<- batch.Event) (batch.Worker, error) {
	words := append([]string{"--config", s.config}, workerWords(s.store, s.batch.Name)...)
	if request != "" {
		words = append([]string{"--config", s.config, "alloc", "--wait", "--name", "batch " + s.batch.Name, request, "--", s.program}, words...)
	}
	cmd := exec.Command("/proc/self/exe", words...)
	cmd.Args[0] = "berth"
	// ^C of the terminal is for the runner.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	w := &workerProcess{cmd: cmd, store: s.store, batch: s.batch, slot: slot, jobs: make(chan batch.Job, 1)}
	said := lastLine{first: func(line string) {
		if slot == 1 { // the others may have their leases
			verb.PrintError("batch " + s.batch.Name + ": " + line)
		}
	}}
	cmd.Stderr = &said
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a worker: %w", err)
	}
	go w.sendOrders(in)
	go func() {
		w.readReports(out, events, s.index)
		err := cmd.Wait()
		if w.ready.Load() {
			err = nil
		} else if text := said.readLine(); text != "" {
			err = errors.New(text)
		}
		events <- batch.Event{Slot: slot, Gone: true, Err: err}
		w.Close() // not before: the runner may give the worker a task until it handles the event
	}()
	return w, nil
}

func (w *workerProcess) sendOrders(in io.WriteCloser) {
	orders := json.NewEncoder(in)
	for j := range w.jobs {
		out, errs := w.store.Output(w.batch.Name, j.Number)
		// An error means that the worker has ended, which readReports sees.
		_ = orders.Encode(batch.Order{Argv: j.Argv, Env: append(taskVariables(w.batch, j, w.slot), j.Env...), Dir: w.batch.TaskDir(j.Task), Out: out, Err: errs, Timeout: j.Timeout})
	}
	_ = in.Close()
}

// taskVariables are the variables that describe a task's place in the batch.
func taskVariables(b *batch.Batch, j batch.Job, slot int) []string {
	return []string{
		"BERTH_BATCH=" + b.Name, fmt.Sprintf("BERTH_TASK=%d", j.Number), fmt.Sprintf("BERTH_TASKS=%d", len(b.Tasks)),
		fmt.Sprintf("BERTH_ATTEMPT=%d", j.Attempt), fmt.Sprintf("BERTH_SLOT=%d", slot),
	}
}

// readReports returns at the end of the worker's output.
func (w *workerProcess) readReports(out io.Reader, events chan<- batch.Event, index func(string) string) {
	reports := json.NewDecoder(out)
	for {
		var r batch.Report
		if err := reports.Decode(&r); err != nil {
			return
		}
		if r.Ready {
			w.ready.Store(true)
			events <- batch.Event{Slot: w.slot, Ready: true, Devices: index(r.Devices)}
		} else if r.Exit != nil {
			events <- batch.Event{Slot: w.slot, Exit: r.Exit}
		}
	}
}

// Run is [batch.Worker]'s.
func (w *workerProcess) Run(j batch.Job) { w.jobs <- j }

// Close ends the worker by the end of its input.
func (w *workerProcess) Close() { w.once.Do(func() { close(w.jobs) }) }

// Kill ends the worker. One with a lease kills its task at the end of its input, and what the task has started; berth alloc that waits for a lease gets a signal.
func (w *workerProcess) Kill() {
	w.Close()
	if !w.ready.Load() {
		_ = unix.Kill(w.cmd.Process.Pid, unix.SIGTERM) // it may have ended
	}
}

// lastLine keeps the last line that was written.
type lastLine struct {
	// first is called with the first line that says what a request waits for.
	first func(line string)
	mu    sync.Mutex
	line  []byte
	told  bool
}

// maxLastLine bounds the line, in bytes.
const maxLastLine = 4096

func (l *lastLine) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := bytes.TrimRight(append(l.line, p...), "\n")
	if i := bytes.LastIndexByte(text, '\n'); i >= 0 {
		text = text[i+1:]
	}
	l.line = append(text[max(len(text)-maxLastLine, 0):len(text):len(text)], '\n')
	if waits := strings.TrimPrefix(string(text), "berth: "); !l.told && strings.HasPrefix(waits, "waiting for ") {
		l.told = true
		l.first(waits)
	}
	return len(p), nil
}

func (l *lastLine) readLine() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.TrimPrefix(strings.TrimSpace(string(l.line)), "berth: ")
}
