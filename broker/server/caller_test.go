package server

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
)

// connectPair returns both ends of a connection of this process to itself.
func connectPair(t *testing.T) (server, client *net.UnixConn) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	testutil.Must(t, err)
	defer l.Close()
	client, err = net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr))
	testutil.Must(t, err)
	server, err = l.AcceptUnix()
	testutil.Must(t, err)
	t.Cleanup(func() { _ = server.Close(); _ = client.Close() })
	return server, client
}

func TestIdentifyCaller(t *testing.T) {
	server, _ := connectPair(t)
	c, err := identifyCaller(server)
	testutil.Must(t, err)
	defer c.Close()
	if c.PID != os.Getpid() || c.UID != os.Getuid() || !c.IsAlive() {
		t.Errorf("%+v", c)
	}
}

// TestOpenPID: on kernels without SO_PEERPIDFD a connection whose other end is closed names no process, for its
// pid may be another's by now.
func TestOpenPID(t *testing.T) {
	server, client := connectPair(t)
	raw, err := server.SyscallConn()
	testutil.Must(t, err)
	try := func() (fd int, err error) {
		testutil.Must(t, raw.Control(func(socket uintptr) { fd, err = openPID(os.Getpid(), int(socket)) }))
		return fd, err
	}
	fd, err := try()
	testutil.Must(t, err)
	_ = unix.Close(fd)
	_ = client.Close()
	if _, err := try(); !errors.Is(err, unix.ESRCH) {
		t.Error(err)
	}
}
