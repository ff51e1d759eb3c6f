package monitor

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// A store listens in the gang's network and nowhere else.
func TestStoreSocket(t *testing.T) {
	testutil.NeedRoot(t)
	sleep := exec.Command("sleep", "1000")
	sleep.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: unix.SIGKILL}
	testutil.Must(t, sleep.Start())
	t.Cleanup(func() {
		_ = sleep.Process.Kill()
		_ = sleep.Wait()
	})
	m := &monitor{Options: Options{Store: tasks.Store{Data: t.TempDir()}, ID: "0a789d129a52"}, rec: tasks.Record{Gang: &tasks.Gang{Network: "none"}}}
	testutil.Must(t, os.MkdirAll(m.path(""), 0o700))
	testutil.Must(t, os.Symlink(filepath.Join("/proc", strconv.Itoa(sleep.Process.Pid), "ns"), m.path("ns")))
	const port = 29400
	l, err := (&gang{own: m}).openStoreSocket(netip.IPv4Unspecified(), port)
	testutil.Must(t, err)
	defer l.Close()
	for pid, want := range map[int]bool{sleep.Process.Pid: true, os.Getpid(): false} {
		sockets, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", pid))
		testutil.Must(t, err)
		if got := bytes.Contains(sockets, fmt.Appendf(nil, "00000000:%04X 00000000:0000 0A", port)); got != want {
			t.Errorf("process %d: %v\n%s", pid, got, sockets)
		}
	}
}
