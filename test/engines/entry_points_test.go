package engines

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-gpu/berth/test/rig"
)

var (
	entrySeed  = flag.Int64("entries.seed", 1, "`seed` of what is drawn; 0 draws one")
	entryTasks = flag.Int("entries.tasks", 300, "how many containers TestEntryPoints runs to their end")
)

// entryHost is a host with all entry points.
type entryHost struct {
	server
	docker *dockerHost
	podman *podmanHost
	claims string // the directory in which tasks claim what they can open

	mu   sync.Mutex
	done map[string]int // tasks that ran to their end, by entry point
	busy int            // that found too little free
	lost int            // that were killed, or whose engine was
	// disturbed counts what was killed.
	disturbed atomic.Int64
	down      atomic.Bool // an engine is being started again
	failed    atomic.Bool
}

// entryPoint is a way of starting a container. words returns the arguments that run a task to its
// end.
type entryPoint struct {
	name  string
	words func(s *entryHost, id, root, gpus string, task ...string) []string
}

func (s *entryHost) volumes(flag string, podman bool) []string {
	dev := "/dev:/nodes"
	if podman {
		dev += ":dev"
	}
	return []string{flag, dev, flag, s.claims + ":/claims"}
}

func dockerEntry(runtime string, request func(string) []string) entryPoint {
	return entryPoint{"docker " + runtime, func(s *entryHost, id, _, gpus string, task ...string) []string {
		words := append([]string{"docker", "run", "--rm", "--network", "none", "--runtime", runtime, "--name", id}, s.volumes("--volume", false)...)
		return append(append(append(words, request(gpus)...), "test"), task...)
	}}
}

func podmanEntry(runtime string) entryPoint {
	return entryPoint{"podman " + runtime, func(s *entryHost, id, _, gpus string, task ...string) []string {
		words := append(s.podman.words("--runtime", runtime, "run", "--rm", "--name", id), s.volumes("--volume", true)...)
		return append(append(append(words, deviceOf(gpus)...), "test"), task...)
	}}
}

func ctrEntry(runtime string, request func(string) []string) entryPoint {
	return entryPoint{"containerd " + runtime, func(s *entryHost, id, root, gpus string, task ...string) []string {
		words := []string{
			"ctr", "run", "--rm", "--cpu-shares", "0", "--runc-binary", program(runtime),
			"--mount", "type=bind,src=/dev,dst=/nodes,options=rbind:rw", "--mount", "type=bind,src=" + s.claims + ",dst=/claims,options=rbind:rw",
		}
		return append(append(append(words, request(gpus)...), "--rootfs", root, id), task...)
	}}
}

func ownEntry(more ...string) entryPoint {
	return entryPoint{"berth run", func(s *entryHost, id, _, gpus string, task ...string) []string {
		words := append([]string{shared.Berth, "run", "--name", id, "--gpus", gpus}, more...)
		return append(append(append(words, s.volumes("--volume", false)...), image), task...)
	}}
}

var entryPoints = []entryPoint{
	dockerEntry("berth", annotationOf), dockerEntry("berth", deviceOf), dockerEntry("runc", deviceOf),
	podmanEntry("berth"), podmanEntry("crun"), podmanEntry("runc"),
	ctrEntry("berth", annotationOf), ctrEntry("berth", deviceOf), ctrEntry("runc", deviceOf),
	ownEntry(), ownEntry("--wait=30s"),
}

// Docker, podman, containerd and berth run share one ledger: 300 short containers of random sizes
// compete for eight GPUs, while their processes, their engines and their clients are killed at
// random. Each container records the GPUs that it can open, without using the leases: no GPU ever
// has two holders, no container opens more or less than it requested, and in the end all are free.
func TestEntryPoints(t *testing.T) {
	skipUnlessWanted(t)
	seed := *entrySeed
	if seed == 0 {
		seed = time.Now().UnixNano()
	}
	t.Logf("-entries.seed %d", seed)
	h := server{startFor(t, "-entries", "forky", "v2")}
	s := &entryHost{server: h, docker: &dockerHost{server: h}, podman: &podmanHost{h, byWrapper}, claims: h.dir + "/claims", done: map[string]int{}}
	// An engine that is killed between a container's creation and its start leaves the container waiting, with its devices.
	s.do(t, "sed", "-i", "s/^\\[policy\\]/&\\nunstarted = '1m'/", "/etc/berth/config.toml")
	s.docker.install(t)
	s.podman.install(t)
	rig.Must(t, os.Mkdir(s.claims, 0o777))
	for i, d := range entryPoints { // engines make some directories at the first use
		s.runTask(t, d, fmt.Sprintf("first%d", i), "8", 8, 0)
	}
	// A killed launcher's task gets a monitor, and the first one makes the monitors' cgroup.
	s.do(t, shared.Berth, "run", "-d", "--name", "detached", image, "/wait")
	s.do(t, shared.Berth, "rm", "-f", "detached")
	s.removeLeftovers(t) // podman keeps an empty cgroup for conmon, but not always
	before := s.footprint(t)

	var started sync.WaitGroup
	tasks := make(chan int)
	for range 6 {
		started.Go(func() {
			for i := range tasks {
				s.runUntilEnd(t, rand.New(rand.NewPCG(uint64(seed), uint64(i))))
			}
		})
	}
	s.runAndKill(t, rand.New(rand.NewPCG(uint64(seed), 1<<32)), tasks)
	close(tasks)
	started.Wait()
	t.Logf("%v ran, %d found too little free, %d ended early, %d processes were killed", s.done, s.busy, s.lost, s.disturbed.Load())
	t.Logf("before engines have removed what they were kept from removing:\n%s", s.run(t, shared.Berth, "leases").out)
	s.removeLeftovers(t)
	s.checkQuiet(t, before)
}

// holders describes a host whose devices aren't released.
const holders = `exec 2>&1; ps -e -o pid,ppid,stat,lstart,args; "$0" leases --json; "$0" ps -a; docker ps -a; podman ps -a; ctr containers ls; ctr tasks ls`

// runUntilEnd runs one container to its end. If too little is free, or if it is killed, it is started again
// by any entry point, after a while with a smaller request.
func (s *entryHost) runUntilEnd(t *testing.T, r *rand.Rand) {
	most := 8
	for try := 0; try < 500 && !s.failed.Load(); try++ {
		d := entryPoints[r.IntN(len(entryPoints))]
		count := min([]int{1, 1, 1, 2, 2, 3, 4, 4, 8}[r.IntN(9)], most)
		gpus := strconv.Itoa(count)
		switch r.IntN(6) {
		case 0:
			gpus = "h100:" + gpus
		case 1:
			gpus, count = "h100", 1
		}
		if s.runTask(t, d, newID(), gpus, count, r.IntN(300)) {
			return
		}
		if try == 10 {
			most = 2
		}
		time.Sleep(time.Duration(r.IntN(40)) * time.Millisecond)
	}
	if !s.failed.Swap(true) {
		t.Errorf("a container doesn't come to its end; the leases:\n%s", s.run(t, "sh", "-c", holders, shared.Berth).out)
	}
}

// runTask runs a container once, and reports whether it ran to its end.
func (s *entryHost) runTask(t *testing.T, d entryPoint, id, gpus string, count, ms int) bool {
	root := filepath.Join(s.dir, id)
	if strings.HasPrefix(d.name, "containerd") {
		if err := os.CopyFS(root, os.DirFS(image)); err != nil {
			t.Error(err)
		}
	}
	before := s.disturbed.Load()
	code, text := s.tryCommand(t, d.words(s, id, root, gpus, "/claim", strconv.Itoa(count), strconv.Itoa(ms), d.name+" "+id))
	if code == 0 { // otherwise it may still run, and would lose the mounts in its root
		_ = os.RemoveAll(root) // the rest is removed with the host
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case code == 0:
		s.done[strings.Fields(d.name)[0]]++
		return true
	case strings.Contains(text, " asked, ") && strings.Contains(text, " of 8 free"), strings.Contains(d.name, "crun") && strings.Contains(text, "executing hook"):
		s.busy++
	case s.down.Load(), s.disturbed.Load() != before:
		s.lost++
	default:
		s.failed.Store(true)
		t.Errorf("%s, %s: exit code %d: %s", d.name, gpus, code, text)
	}
	return false
}

// tryCommand runs a command. A command that hangs after its engine's end is given up.
func (s *entryHost) tryCommand(t *testing.T, words []string) (code int, text string) {
	out, err := os.CreateTemp(s.dir, "")
	if err != nil {
		t.Error(err)
		return 1, ""
	}
	defer os.Remove(out.Name())
	defer out.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 45*time.Second)
	defer cancel()
	cmd := s.command(words...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Error(err)
		return 1, ""
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		t.Error(err)
	}
	said, err := os.ReadFile(out.Name())
	if err != nil {
		t.Error(err)
	}
	return cmd.ProcessState.ExitCode(), string(said)
}
