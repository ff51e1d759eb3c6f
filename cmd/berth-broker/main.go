// Command berth-broker takes and ends leases for users without root. systemd starts it when a user
// connects (berth-broker.socket); without systemd an admin does.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/broker/protocol"
	"github.com/berth-gpu/berth/broker/server"
	"github.com/berth-gpu/berth/internal/process"
)

// version is set by the linker.
var version = "unknown"

func main() {
	err := run(os.Args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "berth-broker:", strings.Join(strings.Fields(err.Error()), " "))
		os.Exit(1)
	}
}

const usage = `usage: berth-broker [--config FILE] [--confined] [--version]

Takes leases for users without root: see berth-broker(8).

  --config FILE  read the configuration from FILE
  --confined     never run berth discover, which needs more rights than a hardened unit has
  --version      print the version
`

func run(args []string) error {
	flags := flag.NewFlagSet("berth-broker", flag.ContinueOnError)
	flags.Usage = func() { fmt.Fprint(os.Stderr, usage) }
	config := flags.String("config", berth.ConfigPath, "")
	confined := flags.Bool("confined", false, "")
	printVersion := flags.Bool("version", false, "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch {
	case *printVersion:
		fmt.Println("berth-broker", version)
		return nil
	case flags.NArg() > 0:
		return fmt.Errorf("it takes no argument, got %q", flags.Arg(0))
	}
	if root, err := process.HostRoot("/proc"); err != nil || !root {
		return errors.Join(errors.New("this needs root of the host"), err)
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	conf, err := berth.LoadConfig(*config)
	var s *server.Server
	if err == nil {
		conf.Log, conf.Confined = log, *confined
		s, err = server.New(conf, log)
	}
	if err != nil && isStartedBySystemd() { // systemd ends a socket whose service fails again and again
		err = fmt.Errorf("the broker has to be restarted once this is fixed: %w", err)
		log.Error("no request is served", "error", err)
		s, err = server.Refuse(err, log), nil
	}
	if err != nil {
		return err
	}
	listener, err := openListener(conf.State)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	context.AfterFunc(ctx, func() { _ = listener.Close() })
	// Requests that wait are cut off, as by a kill: their callers go on with the next broker, and keep
	// their places in the queue.
	return s.Serve(context.Background(), listener)
}

func isStartedBySystemd() bool { return os.Getenv("LISTEN_PID") == strconv.Itoa(os.Getpid()) }

// openListener returns the socket that systemd has passed, or makes one in the state directory.
func openListener(state string) (*net.UnixListener, error) {
	if isStartedBySystemd() {
		if n := os.Getenv("LISTEN_FDS"); n != "1" {
			return nil, fmt.Errorf("systemd has passed %s sockets, and one is expected", n)
		}
		const first = 3 // SD_LISTEN_FDS_START
		file := os.NewFile(first, "socket")
		l, err := net.FileListener(file)
		_ = file.Close() // the listener has a copy that children don't inherit
		if err != nil {
			return nil, fmt.Errorf("listen at the socket of systemd: %w", err)
		}
		listener, ok := l.(*net.UnixListener)
		if !ok {
			return nil, errors.New("the socket of systemd is no Unix socket")
		}
		return listener, nil
	}
	path := protocol.SocketPath(state)
	if err := os.MkdirAll(state, 0o755); err != nil {
		return nil, err
	}
	if conn, err := net.Dial("unix", path); err == nil {
		_ = conn.Close()
		return nil, fmt.Errorf("a broker listens at %s already", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // of a broker that was killed
		return nil, err
	}
	// Every user may connect, from the moment that the socket is there.
	defer unix.Umask(unix.Umask(0o111))
	return net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
}
