package tasks

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berth-gpu/berth/test/rig"
)

var (
	gangStorms = flag.Int("gang.storms", 2, "how often something of a gang is killed, on each server")
	gangSeed   = flag.Uint64("gang.seed", 1, "`seed` of what is drawn; 0 draws one")
)

// TestGangStorm: whatever of a gang is killed at whatever moment, after the next command
// nothing of it is left: no lease, no process, cgroup, mount, interface nor directory.
func TestGangStorm(t *testing.T) {
	seed := *gangSeed
	if seed == 0 {
		seed = rand.Uint64N(1 << 32)
	}
	t.Logf("-gang.seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	onGangServers(t, func(t *testing.T, s server) {
		for round := range *gangStorms {
			s.storm(t, round, random)
			if t.Failed() {
				return
			}
		}
	})
}

func (s server) storm(t *testing.T, round int, random *rand.Rand) {
	t.Helper()
	victims := []string{"launcher", "monitor", "holder", "rank", "all but ranks"}
	victim := victims[random.IntN(len(victims))]
	network := []string{"private", "none"}[random.IntN(2)]
	name, after := fmt.Sprintf("storm%d", round), time.Duration(random.IntN(600))*time.Millisecond
	id := t.TempDir() + "/id"
	cmd := s.Command(s.Berth, "run", "--runtime", s.runtime, "--cidfile", id, "--name", name, "-n", "3", "--gpus-per-rank", "1",
		"--network", network, "--stop-timeout", "1", rig.ImagePath(t, "busybox"), "sh", "-c", "trap 'exit 9' TERM; while :; do sleep 0.01; done")
	rig.Must(t, cmd.Start())
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	time.Sleep(after)
	what := fmt.Sprintf("%s after %v, network %s", victim, after, network)
	s.kill(t, victim, id, cmd.Process.Pid)
	if victim == "launcher" || victim == "all but ranks" {
		_ = cmd.Process.Kill() // nsenter has become berth
	}
	select {
	case <-done:
	case <-time.After(3 * time.Second):
		_ = cmd.Process.Kill() // nothing was there yet that could be killed, or it was adopted
		<-done
	}
	text, err := os.ReadFile(id)
	if err != nil || len(text) == 0 {
		s.RunBerth(t, "ps")
		return
	}
	end := time.Now().Add(time.Minute)
	for s.RunBerth(t, "ps"); s.Run(t, s.Command("ls", "-d", "/var/lib/berth/tasks/"+string(text))).Code == 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: %s stays: %s", what, text, s.RunBerth(t, "ps", "-a").Out)
		}
		s.RunBerth(t, "ps")
	}
	s.expectNothingLeft(t, string(text))
	if t.Failed() {
		t.Log(what)
	}
}

// kill kills one of a gang's processes, if it is there.
func (s server) kill(t *testing.T, victim, idFile string, launcher int) {
	t.Helper()
	text, _ := os.ReadFile(idFile) // it may not be there yet
	id := string(text)
	var pids []int
	find := func(look string) {
		for _, word := range strings.Fields(s.Run(t, s.Command("sh", "-c", look)).Out) {
			if pid, err := strconv.Atoi(word); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	monitor := `for p in /proc/[0-9]*; do tr '\0' ' ' < $p/cmdline 2>/dev/null | grep -q "^berth-monitor .*` + id + ` $" && echo ${p#/proc/}; done`
	holder := "cat /var/lib/berth/tasks/" + id + "/bundle/pid"
	switch {
	case id == "" || victim == "launcher":
	case victim == "monitor":
		find(monitor)
	case victim == "holder":
		find(holder)
	case victim == "rank":
		find(`for t in /var/lib/berth/tasks/*; do grep -q '"gang":"` + id + `"' $t/task.json && cat $t/bundle/pid && echo && break; done`)
	default:
		find(monitor)
		find(holder)
	}
	for _, pid := range pids {
		if pid > 1 && pid != launcher {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
	}
}
