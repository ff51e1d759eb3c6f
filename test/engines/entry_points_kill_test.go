package engines

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// victims are the names of processes to kill, if they are found: containers' inits, monitors,
// runtimes, and clients.
var victims = []string{
	"claim", "claim", "claim", "claim", "containerd-shim", "containerd-shim", "conmon", "conmon",
	"berth-runtime", "berth-hook", "runc", "crun", "runc:[2:INIT]", "berth", "docker", "podman", "ctr",
}

// runAndKill starts the tasks, and kills a process every second. Each engine that is a daemon is
// killed three times, and restarted.
func (s *entryHost) runAndKill(t *testing.T, r *rand.Rand, tasks chan<- int) {
	t.Helper()
	every := max(*entryTasks/6, 1)
	for i := range *entryTasks {
		if s.failed.Load() {
			return
		}
		tasks <- i
		if r.IntN(2) == 0 {
			s.killIfFound(t, victims[r.IntN(len(victims))], r)
		}
		if i%every == every/2 {
			s.restart(t, i/every%2 == 0)
		}
	}
}

// restart kills an engine and starts it again. Calls during that time may fail.
func (s *entryHost) restart(t *testing.T, docker bool) {
	t.Helper()
	s.down.Store(true)
	s.disturbed.Add(1)
	if docker {
		s.docker.down(t)
		s.docker.up(t)
	} else {
		s.killDaemon(t, "containerd")
		s.startDaemon(t, "containerd")
		s.until(t, "ctr", "version")
		// dockerd needs a while to find containerd again.
		s.until(t, "docker", "run", "--rm", "--network", "none", "--runtime", "runc", "test", "/probe", "/look")
	}
	s.disturbed.Add(1)
	s.down.Store(false)
}

// killIfFound kills a process with this name if one appears within a moment: many live for a few
// milliseconds.
func (s *entryHost) killIfFound(t *testing.T, name string, r *rand.Rand) {
	t.Helper()
	for range 20 {
		found := s.processes(t, name)
		if len(found) == 0 {
			continue
		}
		s.disturbed.Add(1)
		if err := kill(found[r.IntN(len(found))]); err != nil && !errors.Is(err, syscall.ESRCH) && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
		return
	}
}

// processes returns the directories in procfs of the host's processes with a name.
func (s server) processes(t *testing.T, name string) (found []string) {
	t.Helper()
	all, err := filepath.Glob(s.Path("/proc/[0-9]*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range all {
		if comm, err := os.ReadFile(dir + "/comm"); err == nil && strings.TrimSpace(string(comm)) == name {
			found = append(found, dir)
		}
	}
	return found
}

// kill kills exactly the process of a directory in procfs.
func kill(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.PidfdSendSignal(int(f.Fd()), unix.SIGKILL, nil, 0)
}

// debris are the leftovers of killed engines and runtimes, with berth or without: containers'
// states, and empty cgroups.
const debris = `for state in /run/runc /run/crun /run/containerd/runc/default /run/docker/runtime-*/moby; do
	for dir in "$state"/*; do
		runtime=runc; [ ! -e "$dir/status" ] || runtime=crun
		[ ! -d "$dir" ] || "$runtime" --root "$state" delete --force "${dir##*/}" || rm -r "$dir"
	done
done
rm -rf --one-file-system /run/containerd/io.containerd.runtime.v2.task/*/*
grep -o "/var/lib/docker/overlay2/[^ ]*-init/merged" /proc/mounts | xargs -r umount
for dir in default docker libpod_parent; do
	find /sys/fs/cgroup/$dir -mindepth 1 -depth -type d -exec rmdir {} +
done`

// removeLeftovers makes the engines remove what kills have left, and removes the containers that they have
// forgotten.
func (s *entryHost) removeLeftovers(t *testing.T) {
	t.Helper()
	eventually(t, func() string {
		if left := s.processes(t, "claim"); len(left) > 0 {
			return fmt.Sprintf("tasks still run: %v", left)
		}
		return ""
	})
	s.docker.removeAll(t)
	s.podman.removeAll(t)
	for _, id := range strings.Fields(s.do(t, "ctr", "containers", "ls", "--quiet")) {
		s.run(t, "ctr", "tasks", "rm", "--force", id) // it may have none
		s.do(t, "ctr", "containers", "rm", id)
	}
	s.do(t, "sh", "-c", debris)
}

// checkQuiet checks that no GPU had two holders, that all GPUs are free, and that nothing is left of
// containers.
func (s *entryHost) checkQuiet(t *testing.T, before []string) {
	t.Helper()
	if faults, err := os.ReadFile(s.claims + "/faults"); err == nil {
		t.Errorf("from inside of containers:\n%s", faults)
	} else if !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	for i := range 3 {
		if name := []string{"docker", "podman", "containerd"}[i]; s.done[name] == 0 {
			t.Errorf("no container of %s has come to its end", name)
		}
	}
	eventually(t, func() string {
		// This removes the leftovers of killed berth runs, as each one does.
		if got := s.run(t, ownEntry().words(s, newID(), "", "8", "/claim", "8", "0", "the last")...); got.code != 0 {
			return "not all is free: " + got.out + got.err
		}
		return ""
	})
	s.waitUntilFree(t, before)
}
