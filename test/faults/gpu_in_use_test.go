package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/test/rig"
)

// A process outside of berth computes on a GPU. The GPU isn't leased before that process has ended,
// and the refusal names the process.
func TestGPUInUseOutside(t *testing.T) {
	s := startGPUServer(t, "l40s-pcie")
	pid, end := s.compute(t, "2")
	user := fmt.Sprintf(`"tr\x1b[31mn" (%d, root)`, pid)

	if out := s.Do(t, s.Berth, "gpus"); !strings.Contains(out, "in use  "+user) {
		t.Errorf("berth gpus doesn't show the process: %q", out)
	}
	s.Do(t, s.Berth, "discover", "--if-stale", "--processes") // as the timer does
	for _, request := range []string{"device=2", "4"} {
		s.fails(t, []string{"alloc", request, "--", "true"}, 75, "GPU 2 in use by "+user)
	}
	s.Do(t, s.Berth, "alloc", "3", "--", "true")
	s.withPolicy(t, "warn", func(berth ...string) {
		said := s.berth(t, append(berth, "alloc", "4", "--", "true")...)
		if want := "berth: GPU 2 in use by " + user + "\n"; said.Code != 0 || said.Err != want {
			t.Errorf("policy warn, alloc: %+v", said)
		}
		said = s.berth(t, append(berth, "run", "--rm", "--gpus", "device=2", rig.ImagePath(t, "busybox"), "true")...)
		if want := "berth: GPU 2 in use by " + user + "\n"; said.Code != 0 || said.Err != want {
			t.Errorf("policy warn, run: %+v", said)
		}
	})
	s.withPolicy(t, "ignore", func(berth ...string) {
		if said := s.berth(t, append(berth, "alloc", "4", "--", "true")...); said.Code != 0 || said.Err != "" {
			t.Errorf("policy ignore, alloc: %+v", said)
		}
		if said := s.berth(t, append(berth, "gpus")...); strings.Contains(said.Out, "in use") {
			t.Errorf("policy ignore, gpus: %+v", said)
		}
	})

	waiter := s.Command(s.Berth, "alloc", "--wait", "device=2", "--", "true")
	rig.Must(t, waiter.Start())
	end() // NVML isn't asked again: the process lives no more
	rig.Must(t, waiter.Wait())
	s.Do(t, s.Berth, "alloc", "4", "--", "true")
}

// A process that computes without a lease is adopted: by default with the GPUs that it uses.
func TestAdoptWhatComputes(t *testing.T) {
	s := startGPUServer(t, "l40s-pcie")
	pid, end := s.compute(t, "2")
	_, endOther := s.compute(t, "3")
	number := strconv.Itoa(pid)
	s.Do(t, s.Berth, "discover", "--if-stale", "--processes") // as the timer does
	s.fails(t, []string{"adopt", number, "device=1"}, 1, fmt.Sprintf("process %d uses GPU 2, which isn't among those of request device=1", pid))
	s.fails(t, []string{"adopt", number, "2,3"}, 75, "GPU 3 in use by")
	if got := s.Leases(t); len(got) > 0 {
		t.Errorf("left over: %+v", got)
	}
	said := s.berth(t, "adopt", number)
	lease := s.Leases(t)[0]
	if want := lease.ID + ": GPU 2 for 1 process\n"; said.Code != 0 || said.Out != want || said.Err != "" {
		t.Errorf("%+v, want %q", said, want)
	}
	if again := s.berth(t, "adopt", number); again != said {
		t.Errorf("again: %+v", again)
	}
	if g := s.gpus(t); g[2].State != "leased" || g[3].State != "in use" {
		t.Errorf("berth gpus says %+v", g)
	}
	s.fails(t, []string{"alloc", "device=2", "--", "true"}, 75, "")
	end()
	s.Do(t, s.Berth, "alloc", "--wait=1m", "device=2", "--", "true")
	endOther()
	s.Do(t, s.Berth, "alloc", "4", "--", "true")
}

// Processes of a task with a lease are none of others, wherever they compute.
func TestProcessesOfTasksDoNotOccupy(t *testing.T) {
	s := startGPUServer(t, "l40s-pcie")
	s.detach(t, "holder", "device=1")
	pid := strings.TrimSpace(s.Do(t, "sh", "-c", `for p in /proc/[0-9]*; do grep -qs "$0" $p/cgroup && basename $p; done; true`,
		"/berth/"+s.Leases(t)[0].Owner.Container))
	pid, _, _ = strings.Cut(pid, "\n")
	s.change(t, "process", "1", pid, "40G")
	s.change(t, "process", "2", pid, "40G")
	t.Cleanup(func() { s.change(t, "process", "1", pid, "0"); s.change(t, "process", "2", pid, "0") })
	s.Do(t, s.Berth, "discover", "--if-stale", "--processes")
	if g := s.gpus(t); g[1].State != "leased" || g[2].State != "free" {
		t.Errorf("berth gpus says %+v", g)
	}
	s.Do(t, s.Berth, "alloc", "3", "--", "true")
}

// compute starts a process that holds memory of a GPU, whose name a terminal would obey.
func (s gpuServer) compute(t *testing.T, gpu string) (pid int, end func()) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "tr\x1b[31mn")
	s.Do(t, "cp", "/bin/sleep", program)
	pid, end = s.openNode(t, gpu, program, "1000")
	awaitName(t, pid, "tr")
	s.change(t, "process", gpu, strconv.Itoa(pid), "40G")
	t.Cleanup(func() { end(); s.change(t, "process", gpu, strconv.Itoa(pid), "0") })
	return pid, end
}

// openNode starts a program that has the device node of a GPU open. The node's minor is the index of the GPU.
func (s gpuServer) openNode(t *testing.T, gpu, program string, args ...string) (pid int, end func()) {
	t.Helper()
	node, err := os.OpenFile(s.Path("/dev/nvidia"+gpu), unix.O_PATH, 0) // no driver is behind it
	rig.Must(t, err)
	defer node.Close()
	cmd := s.Command(program, args...)
	cmd.ExtraFiles = []*os.File{node}
	rig.Must(t, cmd.Start())
	end = func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	}
	t.Cleanup(end)
	return cmd.Process.Pid, end // nsenter becomes the program
}

// The timer asks NVML only for GPUs whose node a process outside of leases has open: a measurement wakes a GPU.
func TestTimerWakesNoGPU(t *testing.T) {
	s := startGPUServer(t, "l40s-pcie")
	s.detach(t, "holder", "device=3")
	_, end := s.openNode(t, "2", "sleep", "1000")
	timer := []string{"discover", "--if-stale", "--processes", "--quiet"}
	for _, gpu := range []string{"0", "1", "3"} {
		s.change(t, "fail", "nvmlDeviceGetMemoryInfo_v2", "999", gpu)
	}
	defer s.change(t, "unfail")
	if said := s.berth(t, timer...); said.Code != 0 || said.Err != "" {
		t.Errorf("GPU 2 is open, and others are measured: %+v", said)
	}
	s.change(t, "fail", "nvmlDeviceGetMemoryInfo_v2", "999", "2")
	if said := s.berth(t, timer...); said.Code != 0 || !strings.Contains(said.Err, "nvmlDeviceGetMemoryInfo_v2") {
		t.Errorf("GPU 2 is open, and not measured: %+v", said)
	}
	end()
	s.change(t, "fail", "nvmlInit", "999")
	if said := s.berth(t, timer...); said.Code != 0 || said.Err != "" {
		t.Errorf("no GPU is open, and NVML is asked: %+v", said)
	}
}

// awaitName waits until a process runs a program whose name begins so.
func awaitName(t *testing.T, pid int, name string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		is, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if err == nil && strings.HasPrefix(string(is), name) {
			return
		}
	}
	t.Fatalf("process %d doesn't become %s", pid, name)
}

// withPolicy calls f with words that make berth read a configuration with that policy.in_use.
func (s gpuServer) withPolicy(t *testing.T, policy string, f func(berth ...string)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.toml")
	rig.Must(t, os.WriteFile(path, []byte("[policy]\nin_use = \""+policy+"\"\n"), 0o600))
	f("--config", path)
}
