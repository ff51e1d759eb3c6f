package batches

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/launcher/batch"
)

// runFlags are the flags of the verbs that run a batch.
func runFlags() []cli.Flag {
	return []cli.Flag{
		&cli.IntFlag{Name: "jobs", Aliases: []string{"j"}, Usage: "run `N` tasks at once at most (default: as many as there are devices for, or CPUs)"},
		&cli.StringFlag{Name: "name", Usage: "the `NAME` of the batch"},
		&cli.IntFlag{Name: "max-fails", Usage: "start no more tasks when `N` have failed (default: go on)"},
		&cli.BoolFlag{Name: "fail-fast", Usage: "also end the running tasks then; alone, at the first failure"},
		&cli.BoolFlag{Name: "detach", Aliases: []string{"d"}, Usage: "run the batch in the background, and print its name"},
		&cli.BoolFlag{Name: "keep-order", Aliases: []string{"k"}, Usage: "print output in the order of the tasks"},
		&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "print neither output nor progress, only failures and the summary"},
	}
}

// openStore returns the caller's batches.
func openStore(c *cli.Context) (batch.Store, error) {
	conf, err := verb.LoadConfig(c)
	return backend.BatchStore(conf), err
}

// startBatch writes a new batch and runs it.
func startBatch(c *cli.Context, b *batch.Batch) error {
	store, err := openStore(c)
	if err != nil {
		return err
	}
	if err := b.Check(); err != nil {
		return verb.WrongCommandLine(c, err.Error())
	}
	if b.Slots == 0 {
		if b.Slots, err = countSlots(c.Context, c, b.Tasks); err != nil {
			return verb.NameRequest(err)
		}
	}
	b.Slots = min(b.Slots, len(b.Tasks))
	j, err := store.Create(b)
	if err != nil {
		return err
	}
	if c.Bool("detach") {
		return errors.Join(j.Close(), detachBatch(c, store, b.Name))
	}
	return runBatch(c, store, b, batch.NewReplay(b), j)
}

// detachBatch starts a process that runs the batch in the background. What it prints is in the batch's file runner.log.
func detachBatch(c *cli.Context, store batch.Store, name string) error {
	log, err := os.OpenFile(store.Path(name, "runner.log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() // the process has it open
	cmd := exec.Command("/proc/self/exe", "--config", c.String("config"), "batch", "--quiet", "--resume", name)
	cmd.Args[0], cmd.Stdout, cmd.Stderr = "berth", log, log
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the batch's process: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for !store.IsRunning(name) {
		select {
		case err := <-ended: // a short batch, or one that could not be run
			fmt.Println(name)
			if err != nil {
				return fmt.Errorf("batch %s has ended at once: berth batches show %s, and %s, say more", name, name, log.Name())
			}
			return nil
		case <-time.After(5 * time.Millisecond):
		}
	}
	fmt.Println(name)
	return nil
}

// runBatch runs what is left of a batch.
func runBatch(c *cli.Context, store batch.Store, b *batch.Batch, states *batch.Replay, j *batch.Journal) (err error) {
	defer func() { err = errors.Join(err, j.Close()) }()
	program, err := os.Executable()
	if err != nil {
		return err
	}
	leases := newLeaseWatch(c, strings.Join(workerWords(store, b.Name), " "))
	s := starter{store: store, batch: b, config: c.String("config"), program: program, index: leases.findIndexes}
	p := newPrinter(c, store, b, states)
	drain, kill := make(chan struct{}), make(chan struct{})
	stop := watchInterrupts(c.Context, b.Name, p.progress.clearScreen, drain, kill)
	r := batch.Runner{
		Batch: b, Replay: states, Record: j.Append, Start: s.startWorker, Yield: leases.othersWait,
		Changed: p.showChange, Refresh: p.progress.redraw, Drain: drain, Kill: kill, Now: time.Now,
	}
	err = r.Run()
	interrupted := stop()
	counts := states.Count()
	p.printSummary(counts)
	switch {
	case err != nil:
		return fmt.Errorf("batch %s (berth batch --resume %s goes on): %w", b.Name, b.Name, err)
	case interrupted != nil:
		return verb.WithCode(128+int(*interrupted), nil)
	case counts.Succeeded < counts.Total:
		return verb.WithCode(verb.ExitFailure, nil)
	}
	return nil
}

// Signals of berth batches stop: stopSignal ends the start of tasks, and never running tasks; killSignal ends both.
const (
	stopSignal = unix.SIGUSR1
	killSignal = unix.SIGUSR2
)

// watchInterrupts ends the start of tasks at the first SIGINT, SIGTERM or SIGHUP, running tasks at the second, and this process at the third. A signal that was
// ignored when this process started stays so, as under nohup. clear is called before a line is printed. stop returns the first signal.
func watchInterrupts(ctx context.Context, name string, clear func(), drain, kill chan<- struct{}) (stop func() *unix.Signal) {
	verb.SettleInterrupts(ctx) // signals end nothing by themselves from here on
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, append(verb.WithoutIgnored(unix.SIGINT, unix.SIGTERM, unix.SIGHUP), stopSignal, killSignal)...)
	var first *unix.Signal
	var mu sync.Mutex
	go func() {
		for s := range signals {
			mu.Lock()
			number, _ := s.(unix.Signal)
			asked := number == stopSignal || number == killSignal
			again := first != nil
			if !again {
				if asked {
					number = unix.SIGTERM // for the exit code
				}
				first = &number
				clear()
				verb.PrintError("waiting for the running tasks; once more kills them; berth batch --resume " + name + " goes on with the rest")
				close(drain)
			}
			switch {
			case s == stopSignal, s != killSignal && !again:
			case kill != nil:
				close(kill)
				kill = nil
			case !asked: // the workers may never end, for instance while they are stopped
				signal.Reset(s)
				_ = unix.Kill(os.Getpid(), number) // ends this process
			}
			mu.Unlock()
		}
	}()
	return func() *unix.Signal {
		mu.Lock()
		defer mu.Unlock()
		return first
	}
}

// leaseWatch reports whether others wait for devices, and names devices.
type leaseWatch struct {
	ctx    context.Context
	node   *berth.Node
	own    string // the end of the command of this batch's workers
	looked time.Time
	others bool
	named  func() map[string]string // index by UUID; several goroutines call it
}

func newLeaseWatch(c *cli.Context, own string) *leaseWatch {
	node, err := verb.OpenNode(c)
	if err != nil {
		node = nil // berth alloc reports it
	}
	l := &leaseWatch{ctx: context.WithoutCancel(c.Context), node: node, own: own}
	l.named = sync.OnceValue(l.nameDevices)
	return l
}

// nameDevices returns the devices' indexes by UUID, none if there is no inventory.
func (l *leaseWatch) nameDevices() map[string]string {
	named := map[string]string{}
	if l.node == nil {
		return named
	}
	inv, err := l.node.Inventory(l.ctx)
	if err != nil {
		return named
	}
	for _, d := range inv.Devices() {
		named[d.UUID] = d.Index
	}
	return named
}

// yieldInterval is how long a worker keeps its lease at least, and how old the answer of othersWait may be.
const yieldInterval = 2 * time.Second

// othersWait reports whether a worker that has held its lease for this time should give it back: a request waits that isn't one of this batch.
func (l *leaseWatch) othersWait(held time.Duration) bool {
	if l.node == nil || held < yieldInterval {
		return false
	}
	if time.Since(l.looked) >= yieldInterval {
		view, err := backend.ViewLeases(l.ctx, l.node)
		l.looked = time.Now()
		l.others = err == nil && slices.ContainsFunc(view.Queue, func(w ledger.Waiter) bool { return !w.Halted && !l.isOwnWorker(w.Owner) })
	}
	return l.others
}

// isOwnWorker reports whether a request is one of this batch's workers. The name of another batch can begin like this one's.
func (l *leaseWatch) isOwnWorker(o ledger.Owner) bool { return strings.HasSuffix(o.Command, " "+l.own) }

// findIndexes returns the indexes of devices, or their UUIDs where these aren't known.
func (l *leaseWatch) findIndexes(uuids string) string {
	if uuids == "" {
		return uuids
	}
	named := l.named()
	words := strings.Split(uuids, ",")
	for i, w := range words {
		if index, ok := named[w]; ok {
			words[i] = index
		}
	}
	return strings.Join(words, ",")
}

// countFits returns how many tasks with this request can run at once.
func countFits(ctx context.Context, c *cli.Context, text string) (int, error) {
	r, err := request.Parse(text)
	if err != nil {
		return 0, err
	}
	node, err := verb.OpenNode(c)
	if err != nil {
		return 0, err
	}
	return node.CountGrantable(ctx, r)
}

// printer prints the output of tasks that have ended, their failures, and on a terminal the progress.
type printer struct {
	store     batch.Store
	batch     *batch.Batch
	states    *batch.Replay
	quiet     bool
	keepOrder bool
	next      int // with keepOrder, the number of the task whose output is next
	begun     time.Time
	most      int     // tasks at once
	seconds   float64 // of tasks that have ended
	progress  *progress
}

func newPrinter(c *cli.Context, store batch.Store, b *batch.Batch, states *batch.Replay) *printer {
	p := &printer{store: store, batch: b, states: states, quiet: c.Bool("quiet"), keepOrder: c.Bool("keep-order"), next: 1, begun: time.Now()}
	for p.next <= len(b.Tasks) && states.States[p.next-1].Outcome != batch.Pending {
		p.next++ // an earlier runner has printed its output
	}
	if !p.quiet {
		p.progress = newProgress(b, states)
	}
	return p
}

// showChange is called after each change of a task's state.
func (p *printer) showChange(number int, counts batch.Counts) {
	s := &p.states.States[number-1]
	p.progress.noteTask(number, s.Running)
	if p.most = max(p.most, counts.Running); !s.Running {
		p.seconds += s.Exit.Seconds
	}
	if s.Outcome != batch.Pending {
		p.progress.clearScreen()
		if s.Outcome == batch.Failed {
			verb.PrintError(describeFailure(p.batch, number, *s))
		}
		p.printOutputs(number)
	}
	p.progress.redraw(counts)
}

func (p *printer) printOutputs(number int) {
	if p.quiet {
		return
	}
	if !p.keepOrder {
		p.printOutput(number)
		return
	}
	for ; p.next <= len(p.batch.Tasks) && p.states.States[p.next-1].Outcome != batch.Pending; p.next++ {
		p.printOutput(p.next)
	}
}

// printOutput prints the output of a task. The progress begins on a line of its own.
func (p *printer) printOutput(number int) {
	backend.PrintTaskOutput(p.store, p.batch.Name, number)
	out, errs := p.store.Output(p.batch.Name, number)
	if p.progress != nil && (!endsLine(out) || !endsLine(errs)) {
		fmt.Fprintln(os.Stderr)
	}
}

// endsLine reports whether the last line of a file ends with a newline. A file that can't be read counts as empty.
func endsLine(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return true
	}
	defer f.Close()
	last := []byte{'\n'}
	if st, err := f.Stat(); err == nil && st.Size() > 0 {
		_, _ = f.ReadAt(last, st.Size()-1) // on an error the newline stays
	}
	return last[0] == '\n'
}

func describeFailure(b *batch.Batch, number int, s batch.State) string {
	text := fmt.Sprintf("task %s failed with exit code %d", b.Label(number), s.Exit.Code)
	if s.Exit.Why != "" {
		text = fmt.Sprintf("task %s failed: %s", b.Label(number), s.Exit.Why)
	}
	if s.Devices != "" {
		text += " on GPU " + s.Devices
	}
	if s.Attempts > 1 {
		text += fmt.Sprintf(", after %d attempts", s.Attempts)
	}
	if args := b.Tasks[number-1].Args; len(args) > 0 {
		text += ": " + quoteWords(args)
	}
	return text
}

func (p *printer) printSummary(counts batch.Counts) {
	p.progress.clearScreen()
	took := time.Since(p.begun)
	text := fmt.Sprintf("batch %s: %s in %s", p.batch.Name, counts.Summary(), formatSeconds(took))
	if p.most > 1 && took > time.Second {
		text += fmt.Sprintf(", %d at once, which ran %.0f%% of the time", p.most, min(100*p.seconds/took.Seconds()/float64(p.most), 100))
	}
	verb.PrintError(text)
}

func formatSeconds(d time.Duration) string {
	if d < time.Minute {
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return d.Round(time.Second).String()
}

// quoteWords returns the words as a shell would take them.
func quoteWords(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = backend.QuoteForShell(w)
	}
	return strings.Join(quoted, " ")
}
