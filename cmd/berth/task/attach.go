package task

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/launcher/attach"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// AttachCommand is berth attach.
func AttachCommand() *cli.Command {
	return &cli.Command{
		Name:      "attach",
		Usage:     "connect the terminal to a detached task",
		ArgsUsage: "TASK",
		Description: "Prints the task's output from now on; berth logs shows earlier output. Input goes to a task that was\n" +
			"started with -i, whose input stays open after this command. Signals go to the task; the third ctrl-c\n" +
			"within two seconds also ends this command. At a terminal, ctrl-p ctrl-q ends this command and not the\n" +
			"task. Otherwise it ends with the task, with the task's exit code.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "no-stdin", Usage: "send no input to the task"},
			&cli.BoolFlag{Name: "sig-proxy", Usage: "send signals to the task; with --sig-proxy=false they only end this command", Value: true},
			&cli.StringFlag{Name: "detach-keys", Usage: "detach from the task with `KEYS`", Value: "ctrl-p,ctrl-q"},
		},
		OnUsageError: verb.WrongUsage,
		BashComplete: backend.CompleteTasks(func(t tasks.Task) bool { return t.Detached && t.State == tasks.Running }),
		Action:       attachTask,
	}
}

func attachTask(c *cli.Context) error {
	if c.NArg() != 1 {
		return verb.WrongCommandLine(c, "attach takes one task, by id or name; berth ps shows them")
	}
	keys, err := parseKeys(c.String("detach-keys"))
	if err != nil {
		return verb.WrongCommandLine(c, err.Error())
	}
	store, t, err := findTask(c)
	if err != nil {
		return err
	}
	switch {
	case t.Gang != nil:
		return fmt.Errorf("task %s is a gang; berth logs -f %s shows the output of all ranks, and berth attach %s.%s that of one", t.Name, t.Name, t.Name, t.Gang.Names[0])
	case !t.Detached:
		return fmt.Errorf("task %s isn't detached: its berth run is attached to it", t.Name)
	case t.State == tasks.Exited || t.State == tasks.Lost || t.State == tasks.Waiting:
		return fmt.Errorf("task %s doesn't run (%s); berth logs %s shows its output", t.Name, t.Status, t.Name)
	}
	conn, err := attach.Dial(store.Socket(t.ID))
	if err != nil {
		return fmt.Errorf("attach to task %s: %w", t.Name, err)
	}
	defer conn.Close()
	a := attachment{
		task: t, conn: conn, keys: keys, ended: make(chan error, 3),
		dial: func() (*os.File, error) { return attach.Dial(store.Socket(t.ID)) },
	}
	return a.run(c.Done(), c.Bool("sig-proxy"), t.Interactive && !c.Bool("no-stdin"))
}

// attachment is the connection of berth attach to a task.
type attachment struct {
	task  tasks.Task
	conn  *os.File
	keys  []byte
	ended chan error
	// dial opens the second connection, for signals and sizes: the first can be full of input
	// that the task doesn't read.
	dial   func() (*os.File, error)
	second *os.File // nil until the first signal
}

// errDetached means that the user has typed the detach keys.
var errDetached = errors.New("detached")

func (a *attachment) run(interrupted <-chan struct{}, proxy, typing bool) error {
	if a.task.Terminal && typing && term.IsTerminal(int(os.Stdin.Fd())) {
		old, err := term.MakeRaw(int(os.Stdin.Fd()))
		if err != nil {
			return fmt.Errorf("take over the terminal: %w", err)
		}
		defer func() { _ = term.Restore(int(os.Stdin.Fd()), old) }() // the terminal may be gone
		a.followSize(a.conn)                                         // before any input
	}
	stop := a.forwardSignals(proxy)
	defer stop()
	go a.showOutput()
	if typing {
		go a.readKeys()
	}
	if proxy {
		interrupted = nil // signals go to the task
	}
	select {
	case err := <-a.ended:
		if errors.Is(err, errDetached) {
			return nil
		}
		return err
	case <-interrupted:
		return nil
	}
}

// showOutput prints the task's output until its end, and sends the end to a.ended.
func (a *attachment) showOutput() {
	buf := make([]byte, attach.Max)
	for {
		kind, data, err := attach.Read(a.conn, buf)
		if err != nil {
			a.ended <- fmt.Errorf("task %s: its monitor was killed; berth attach %s connects to the next one: %w", a.task.Name, a.task.Name, err)
			return
		}
		switch kind {
		case attach.Stdout:
			_, err = os.Stdout.Write(data)
		case attach.Stderr:
			_, err = os.Stderr.Write(data)
		case attach.Behind:
			err = errors.New("the output was read too slowly, and the task doesn't wait; berth logs has all of it")
		case attach.Exit:
			err = endedError(data)
		}
		if err != nil || kind == attach.Exit {
			a.ended <- err
			return
		}
	}
}

func endedError(data []byte) error {
	if len(data) == 1 && data[0] == 0 {
		return nil
	}
	if len(data) != 1 {
		return errors.New("the task has ended, and its monitor didn't report the exit code")
	}
	return verb.WithCode(int(data[0]), nil)
}

// readKeys passes the input on to the task. At a terminal it looks for the detach keys.
func (a *attachment) readKeys() {
	m := matcher{}
	if term.IsTerminal(int(os.Stdin.Fd())) {
		m.keys = a.keys
	}
	buf := make([]byte, 4096)
	for {
		n, err := os.Stdin.Read(buf)
		typed, left := m.match(buf[:n])
		if len(typed) > 0 {
			if err := attach.Write(a.conn, attach.Stdin, typed); err != nil {
				return // showOutput reports the reason
			}
		}
		if left {
			a.ended <- errDetached
			return
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				a.ended <- fmt.Errorf("read the input: %w", err)
			}
			return
		}
	}
}

// forwardSignals passes signals and sizes of the terminal on to the task.
func (a *attachment) forwardSignals(proxy bool) (stop func()) {
	signals := make(chan os.Signal, 16)
	if proxy {
		signal.Notify(signals, verb.ForwardedSignals()...)
	}
	if a.task.Terminal {
		signal.Notify(signals, unix.SIGWINCH)
	}
	go func() {
		var last verb.InterruptCounter
		for s := range signals {
			number, _ := s.(syscall.Signal) // all signals are of this type on Linux
			conn, err := a.openControl()
			switch {
			case err != nil: // the task may have ended
			case number == unix.SIGWINCH:
				a.followSize(conn)
			default:
				_ = attach.Write(conn, attach.Signal, []byte{byte(number)}) // the task may have ended
			}
			if number == unix.SIGINT && last.IsThird(time.Now()) {
				a.ended <- verb.WithCode(128+int(number), fmt.Errorf("task %s still runs; berth stop %s ends it", a.task.Name, a.task.Name))
			}
		}
		if a.second != nil {
			a.second.Close() // no data is pending
		}
	}()
	return func() { signal.Stop(signals); close(signals) }
}

// openControl returns the connection for signals and sizes. It gets no output of the task.
func (a *attachment) openControl() (*os.File, error) {
	if a.second != nil {
		return a.second, nil
	}
	conn, err := a.dial()
	if err == nil {
		err = attach.Write(conn, attach.Quiet, nil)
	}
	if err != nil {
		return nil, err
	}
	a.second = conn
	return conn, nil
}

func (a *attachment) followSize(conn *os.File) {
	columns, rows, err := term.GetSize(int(os.Stdin.Fd()))
	if err != nil {
		return // standard output is no terminal
	}
	var size [4]byte
	binary.BigEndian.PutUint16(size[:], uint16(rows))
	binary.BigEndian.PutUint16(size[2:], uint16(columns))
	_ = attach.Write(conn, attach.Resize, size[:]) // the task may have ended
}

// parseKeys parses detach keys: "ctrl-p,ctrl-q", or single letters; "" means none.
func parseKeys(s string) ([]byte, error) {
	if s == "" {
		return nil, nil
	}
	var keys []byte
	for word := range strings.SplitSeq(s, ",") {
		name, ctrl := strings.CutPrefix(strings.ToLower(word), "ctrl-")
		switch {
		case ctrl && len(name) == 1 && strings.Contains("abcdefghijklmnopqrstuvwxyz@[\\]^_", name):
			keys = append(keys, name[0]&0x1f)
		case !ctrl && len(word) == 1:
			keys = append(keys, word[0])
		default:
			return nil, fmt.Errorf("--detach-keys %q: %q is neither a letter nor ctrl- and a letter", s, word)
		}
	}
	return keys, nil
}

// matcher looks for the detach keys in the input. Input that could be their beginning is held
// back until the next keys decide.
type matcher struct {
	keys []byte
	held int
}

// match returns the input to pass on, and whether the detach keys were typed.
func (m *matcher) match(typed []byte) (pass []byte, found bool) {
	if len(m.keys) == 0 {
		return typed, false
	}
	for _, b := range typed {
		for b != m.keys[m.held] && m.held > 0 {
			// The held input may contain a later beginning of the keys.
			pass = append(pass, m.keys[0])
			held := m.held
			m.held = 0
			for _, again := range m.keys[1:held] {
				if again == m.keys[m.held] {
					m.held++
				} else {
					pass = append(append(pass, m.keys[:m.held]...), again)
					m.held = 0
				}
			}
		}
		if b != m.keys[m.held] {
			pass = append(pass, b)
			continue
		}
		if m.held++; m.held == len(m.keys) {
			return pass, true
		}
	}
	return pass, false
}
