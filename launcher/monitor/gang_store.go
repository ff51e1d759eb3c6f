package monitor

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/userns"
	"github.com/berth-gpu/berth/isolation/network"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// offerStores opens a listening socket in the gang's network for each store. The process that serves
// a store is started with the first connection, because most gangs never use one. In a user namespace it is started at once:
// the next monitor would be in another one, and couldn't listen in the gang's network.
func (g *gang) offerStores(address string) error {
	at, err := netip.ParseAddr(address)
	if err != nil || !at.Is4() {
		return fmt.Errorf("offer a store at %q: no address", address)
	}
	for _, s := range g.own.rec.Gang.Stores {
		l, err := g.openStoreSocket(at, s.Port)
		if errors.Is(err, unix.EADDRINUSE) { // another gang's in the host's network, or already served
			g.own.logError(err)
			continue
		}
		if err != nil {
			return err
		}
		if !userns.IsInside() {
			g.stores = append(g.stores, l)
			go g.serveFirstClient(l, s)
			continue
		}
		err = g.serveStore(l, s)
		l.Close() // nothing was written; without the process that serves it, clients are refused
		if err != nil {
			return err
		}
	}
	return nil
}

// openStoreSocket opens a listening socket in the gang's network.
func (g *gang) openStoreSocket(at netip.Addr, port int) (l *os.File, err error) {
	listen := func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return fmt.Errorf("open a socket: %w", err)
		}
		l = os.NewFile(uintptr(fd), "store")
		where := &unix.SockaddrInet4{Port: port, Addr: at.As4()}
		err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.Bind(fd, where), unix.Listen(fd, 128))
		if err != nil {
			err = errors.Join(fmt.Errorf("listen at %v, port %d: %w", at, port, err), l.Close())
		}
		return err
	}
	if g.own.rec.Gang.Network == "host" {
		err := listen()
		return l, err
	}
	ns, err := os.Open(g.own.path("ns/net"))
	if err != nil {
		return nil, fmt.Errorf("open the gang's network: %w", err)
	}
	defer ns.Close()
	err = network.RunInNamespace(ns, listen)
	return l, err
}

// serveFirstClient waits for the first connection and then starts the process that serves it and
// all later ones.
func (g *gang) serveFirstClient(l *os.File, s tasks.GangStore) {
	raw, err := l.SyscallConn()
	if err == nil {
		err = raw.Read(func(fd uintptr) bool {
			fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			n, err := unix.Poll(fds, 0)
			return err == nil && n > 0
		})
	}
	if err != nil {
		return // it was closed: the gang's life has ended
	}
	if err := g.serveStore(l, s); err != nil {
		g.own.logError(err)
	}
	l.Close() // without the process that serves it, later clients are refused, and don't wait for ever
}

// serveStore starts the process that serves a store, in the gang's cgroup, so that it ends with the
// gang, and in a root without other files. The process drops its privileges itself, because the user nobody may not be allowed to execute the program.
func (g *gang) serveStore(l *os.File, s tasks.GangStore) error {
	m := g.own
	scopes, err := json.Marshal(s.Scopes)
	if err != nil {
		return err
	}
	cmd := &exec.Cmd{
		Path: "/berth", Args: []string{"berth", "rendezvous", string(scopes)}, Env: []string{}, Dir: "/", ExtraFiles: []*os.File{l},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := g.startAlone(cmd, m.rec.Gang.Server); err != nil {
		return err
	}
	return cmd.Process.Release() // the reaper collects it
}

// closeStores closes the stores. A process that serves one ends with the gang's cgroup.
func (g *gang) closeStores() {
	for _, l := range g.stores {
		l.Close() // nothing was written
	}
	g.stores = nil
}
