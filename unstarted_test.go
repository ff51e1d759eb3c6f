package berth

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// TestCreatedInOtherNamespace: a container that was created and not started is found by the one process of its cgroup if its
// init's pid is of another pid namespace.
func TestCreatedInOtherNamespace(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "exec.fifo")
	testutil.Must(t, unix.Mkfifo(fifo, 0o600))
	// As a runtime's init: forked, without an exec, and with exec.fifo open.
	cmd := exec.Command("sh", "-c", `(read own rest </proc/self/stat; exec 9<>"$0"; echo $own; read go) <>"$0"; true`, fifo)
	out, err := cmd.StdoutPipe()
	testutil.Must(t, err)
	testutil.Must(t, cmd.Start())
	line := bufio.NewScanner(out)
	line.Scan()
	pid, err := strconv.Atoi(line.Text())
	testutil.Must(t, err)
	defer func() {
		_ = unix.Kill(pid, unix.SIGKILL) // its shell ends with it
		_ = cmd.Wait()
	}()
	start, err := process.Start("/proc", pid)
	testutil.Must(t, err)
	own, err := process.Namespace("/proc", os.Getpid())
	testutil.Must(t, err)
	root := t.TempDir()
	testutil.Must(t, os.Mkdir(root+"/c1", 0o755))
	n := &Node{cgroups: cgroup.Hierarchy{Version: cgroup.V2, Root: root, Mount: root}}
	for _, tt := range []struct {
		name, pids, place string
		init              ledger.Process
		want              bool
	}{
		{"here", "", "/c1", ledger.Process{PID: pid, Start: start, Namespace: own}, true},
		{"in another namespace", strconv.Itoa(pid), "/c1", ledger.Process{PID: 1, Start: start, Namespace: own + 1}, true},
		{"beside another process", strconv.Itoa(pid) + "\n1", "/c1", ledger.Process{PID: 1, Start: start, Namespace: own + 1}, false},
		{"another process", strconv.Itoa(pid), "/c1", ledger.Process{PID: 1, Start: start + 1, Namespace: own + 1}, false},
		{"cgroup unknown", strconv.Itoa(pid), "", ledger.Process{PID: 1, Start: start, Namespace: own + 1}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			testutil.Must(t, os.WriteFile(root+"/c1/cgroup.procs", []byte(tt.pids+"\n"), 0o600))
			s := ledger.Status{Live: true, Lease: ledger.Lease{State: ledger.Bound, Owner: ledger.Owner{Container: "c1", Cgroup: tt.place, Process: tt.init}}}
			if got := n.isCreated(s); got != tt.want {
				t.Errorf("created: %v, want %v", got, tt.want)
			}
		})
	}
}
