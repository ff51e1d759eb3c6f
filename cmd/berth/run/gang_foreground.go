package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/helper"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/launcher/attach"
	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/logs"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// watchGang launches a gang that ends with this process. It prints the output of the ranks,
// passes signals on to them, and returns the gang's exit code as an error.
func watchGang(c *cli.Context, conf berth.Config, req launchRequest, session *helper.Session) error {
	theirs, ours, err := os.Pipe() // the kernel closes ours when this process ends in any way
	if err != nil {
		return verb.WithCode(verb.ExitBerth, err)
	}
	g := &foregroundGang{store: backend.TaskStore(conf), pipe: ours, signals: make(chan os.Signal, 16), over: make(chan struct{})}
	signal.Notify(g.signals, verb.ForwardedSignals()...) // early signals are passed on when the ranks run
	id, monitor, err := runLauncher(c, req, theirs, session)
	theirs.Close()
	if err != nil {
		return err
	}
	code, err := g.watch(context.WithoutCancel(c.Context), id)
	_ = monitor.cmd.Wait() // a user's lease ends with its last process, which is the monitor
	if err != nil || code != 0 {
		return verb.WithCode(code, err)
	}
	return nil
}

// foregroundGang is a gang whose output and signals go through this process.
type foregroundGang struct {
	store   tasks.Store
	pipe    *os.File
	signals chan os.Signal
	id      string
	over    chan struct{} // closed when all output was printed
}

func (g *foregroundGang) watch(ctx context.Context, id string) (int, error) {
	g.id = id
	record, err := g.store.Record(id)
	if err != nil || record.Gang == nil { // it has ended already, and its record was removed
		return verb.ExitBerth, errors.Join(fmt.Errorf("gang %s has ended before its record could be read", id), err)
	}
	first, last := g.attachRanks(attach.Ended), g.attachRanks()
	go g.forwardInput()
	p := output.NewRankPrinter(*record.Gang)
	var readers sync.WaitGroup
	for i, rank := range record.Gang.Ranks {
		readers.Go(func() {
			q := logs.Query{Tail: -1, Ended: g.hasEnded, Wake: g.over, Hold: true, Idle: p.FlushWhenIdle(i)}
			if err := logs.Read(ctx, g.store.Path(rank, "log"), q, p.PrinterFor(i)); err != nil {
				verb.PrintError(err.Error())
			}
		})
	}
	code, known := exitOf(first)
	var reason string
	if life, err := g.store.Life(id); err == nil && life != nil && life.Ended != nil {
		reason = life.Ended.Error
	}
	if !known { // its monitor was killed; the next monitor releases the lease
		if code, err = control.Wait(ctx, g.store, tasks.Task{Record: record}); err != nil {
			reason = err.Error()
		}
	}
	close(g.over)
	readers.Wait()
	p.End()
	g.pipe.Close() // all output was printed
	if known {
		exitOf(last) // returns when the lease is released
	}
	if reason != "" && code != 0 {
		return code, fmt.Errorf("gang %s: %s", record.Name, reason)
	}
	return code, nil
}

func (g *foregroundGang) hasEnded() bool {
	select {
	case <-g.over:
		return true
	default:
		return false
	}
}

// attachRanks returns a connection to the gang's monitor, nil if the monitor was killed.
func (g *foregroundGang) attachRanks(as ...attach.Kind) *os.File {
	conn, err := attach.Dial(g.store.Socket(g.id))
	if err != nil {
		return nil
	}
	for _, kind := range as {
		_ = attach.Write(conn, kind, nil) // reading reports a dead monitor
	}
	return conn
}

// exitOf waits until a gang's monitor reports the end. ok is false if the monitor was killed.
func exitOf(conn *os.File) (code int, ok bool) {
	if conn == nil {
		return verb.ExitBerth, false
	}
	defer conn.Close()
	buf := make([]byte, attach.Max)
	for {
		kind, data, err := attach.Read(conn, buf)
		if err != nil {
			return verb.ExitBerth, false
		}
		if kind == attach.Exit && len(data) == 1 {
			return int(data[0]), true
		}
	}
}

// forwardInput passes signals on to all ranks directly, because a killed monitor would lose
// them. The third ^C within two seconds kills the gang.
func (g *foregroundGang) forwardInput() {
	var last verb.InterruptCounter
	for s := range g.signals {
		number, _ := s.(syscall.Signal) // all signals are of this type on Linux
		if err := g.signalRanks(number); err != nil && !errors.Is(err, control.ErrNotRunning) {
			verb.PrintError(err.Error())
		}
		if number == unix.SIGINT && last.IsThird(time.Now()) {
			g.pipe.Close()
		}
	}
}

func (g *foregroundGang) signalRanks(s syscall.Signal) error {
	t, err := g.store.Task(g.id)
	if err != nil {
		return err
	}
	// A signal that ends the attached gang also prevents its restart.
	if slices.Contains([]syscall.Signal{unix.SIGINT, unix.SIGQUIT, unix.SIGHUP, unix.SIGTERM}, s) {
		if err := g.store.MarkStopped(g.id); err != nil {
			return err
		}
	}
	return control.Signal(context.Background(), g.store, t, s)
}
