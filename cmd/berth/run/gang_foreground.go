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
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/launcher/attach"
	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/logs"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// watchGang has a gang launched that lives as long as this process looks at it: shows what
// its ranks write, passes signals on, and ends with its exit code.
func watchGang(c *cli.Context, conf berth.Config, req launchRequest) error {
	theirs, ours, err := os.Pipe() // which ends with this process, however that ends
	if err != nil {
		return verb.WithCode(verb.ExitBerth, err)
	}
	v := &foregroundGang{store: backend.TaskStore(conf), pipe: ours, signals: make(chan os.Signal, 16), over: make(chan struct{})}
	signal.Notify(v.signals, verb.ForwardedSignals()...) // what comes before the ranks run is passed on when they do
	id, err := runLauncher(c, req, theirs)
	theirs.Close()
	if err != nil {
		return err
	}
	code, err := v.watchGang(context.WithoutCancel(c.Context), id)
	if err != nil || code != 0 {
		return verb.WithCode(code, err)
	}
	return nil
}

// foregroundGang is one look at a gang in the foreground.
type foregroundGang struct {
	store   tasks.Store
	pipe    *os.File
	signals chan os.Signal
	id      string
	over    chan struct{} // closed when nothing more is written
}

func (v *foregroundGang) watchGang(ctx context.Context, id string) (int, error) {
	v.id = id
	record, err := v.store.Record(id)
	if err != nil || record.Gang == nil { // it has ended already, and nothing was kept
		return verb.ExitBerth, errors.Join(fmt.Errorf("gang %s has ended before it could be looked at", id), err)
	}
	first, last := v.attachRanks(attach.Ended), v.attachRanks()
	go v.forwardInput()
	p := output.NewRankPrinter(*record.Gang)
	var readers sync.WaitGroup
	for i, rank := range record.Gang.Ranks {
		readers.Go(func() {
			q := logs.Query{Tail: -1, Ended: v.hasEnded, Wake: v.over, Hold: true, Idle: p.FlushWhenIdle(i)}
			if err := logs.Read(ctx, v.store.Path(rank, "log"), q, p.PrinterFor(i)); err != nil {
				verb.PrintError(err.Error())
			}
		})
	}
	code, known := exitOf(first)
	var reason string
	if life, err := v.store.Life(id); err == nil && life != nil && life.Ended != nil {
		reason = life.Ended.Error
	}
	if !known { // its monitor was killed; the next one gives everything back
		if code, err = control.Wait(ctx, v.store, tasks.Task{Record: record}); err != nil {
			reason = err.Error()
		}
	}
	close(v.over)
	readers.Wait()
	p.End()
	v.pipe.Close() // all was seen
	if known {
		exitOf(last) // all was given back
	}
	if reason != "" && code != 0 {
		return code, fmt.Errorf("gang %s: %s", record.Name, reason)
	}
	return code, nil
}

func (v *foregroundGang) hasEnded() bool {
	select {
	case <-v.over:
		return true
	default:
		return false
	}
}

// attachRanks returns a connection to the gang's monitor, nil if that was killed.
func (v *foregroundGang) attachRanks(as ...attach.Kind) *os.File {
	conn, err := attach.Dial(v.store.Socket(v.id))
	if err != nil {
		return nil
	}
	for _, kind := range as {
		_ = attach.Write(conn, kind, nil) // who has died since tells nothing
	}
	return conn
}

// exitOf waits for the end of which a gang's monitor tells.
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

// forwardInput passes signals on to all ranks, not by way of the monitor: one that was killed
// takes what is sent to it with it. Who presses ^C for the third time gives up.
func (v *foregroundGang) forwardInput() {
	var last verb.InterruptCounter
	for s := range v.signals {
		number, _ := s.(syscall.Signal) // there are no others on this system
		if err := v.signalRanks(number); err != nil && !errors.Is(err, control.ErrNotRunning) {
			verb.PrintError(err.Error())
		}
		if number == unix.SIGINT && last.IsThird(time.Now()) {
			v.pipe.Close()
		}
	}
}

func (v *foregroundGang) signalRanks(s syscall.Signal) error {
	t, err := v.store.Task(v.id)
	if err != nil {
		return err
	}
	// Whoever looks at a gang means its end, and no life after this one.
	if slices.Contains([]syscall.Signal{unix.SIGINT, unix.SIGQUIT, unix.SIGHUP, unix.SIGTERM}, s) {
		if err := v.store.MarkStopped(v.id); err != nil {
			return err
		}
	}
	return control.Signal(context.Background(), v.store, t, s)
}
