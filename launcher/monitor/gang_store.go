package monitor

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/launcher/ociruntime"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// offerStores has the stores of a gang be reachable in its network: each is a listening socket, and
// a process that serves it as soon as somebody comes. Most gangs never ask for one.
func (g *gang) offerStores(address string) error {
	at, err := netip.ParseAddr(address)
	if err != nil || !at.Is4() {
		return fmt.Errorf("offer a store at %q: no address", address)
	}
	for _, s := range g.own.rec.Gang.Stores {
		l, err := g.openStoreSocket(at, s.Port)
		if errors.Is(err, unix.EADDRINUSE) { // another gang's, in the host's network, or one that goes on
			g.own.logError(err)
			continue
		}
		if err != nil {
			return err
		}
		g.stores = append(g.stores, l)
		go g.serveFirstClient(l, s)
	}
	return nil
}

// openStoreSocket opens a socket in the gang's network.
func (g *gang) openStoreSocket(at netip.Addr, port int) (l *os.File, err error) {
	where := &unix.SockaddrInet4{Port: port, Addr: at.As4()}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread stays behind in that namespace, and ends
		if err = g.enterNetwork(); err != nil {
			return
		}
		fd, e := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if e != nil {
			err = fmt.Errorf("open a socket: %w", e)
			return
		}
		l = os.NewFile(uintptr(fd), "store")
		err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.Bind(fd, where), unix.Listen(fd, 128))
		if err != nil {
			err = fmt.Errorf("listen at %v, port %d: %w", at, port, err)
			l.Close()
		}
	}()
	<-done
	return l, err
}

// enterNetwork moves the calling thread.
func (g *gang) enterNetwork() error {
	if g.own.rec.Gang.Network == "host" {
		return nil
	}
	ns, err := os.Open(g.own.path("ns/net"))
	if err != nil {
		return fmt.Errorf("open the gang's network: %w", err)
	}
	defer ns.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter the gang's network: %w", err)
	}
	return nil
}

// serveFirstClient waits for the first who comes, and has a process serve him and those after him.
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
	g.onFirstThread(func() {
		if err := g.serveStore(l, s); err != nil {
			g.own.logError(err)
			l.Close() // who comes is refused, rather than kept waiting
		}
	})
}

// serveStore starts the process, in the gang's cgroup: it ends with the gang. It becomes
// nobody by itself, who might not reach the program.
func (g *gang) serveStore(l *os.File, s tasks.GangStore) error {
	m := g.own
	scopes, err := json.Marshal(s.Scopes)
	if err != nil {
		return err
	}
	cmd := &exec.Cmd{
		Path: m.rec.Gang.Server, Args: []string{"berth", "rendezvous", string(scopes)}, Env: []string{}, Dir: "/", ExtraFiles: []*os.File{l},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	_, err = ociruntime.Program{}.Start(cmd, func(cmd *exec.Cmd) error { return m.tree.StartRuntime(cmd, m.rec.Cgroup) })
	if err != nil {
		return fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return cmd.Process.Release() // it is buried with the others
}

// closeStores closes the stores. A process that serves one ends with the gang's cgroup.
func (g *gang) closeStores() {
	for _, l := range g.stores {
		l.Close() // nothing was written
	}
	g.stores = nil
}
