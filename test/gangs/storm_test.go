package gangs

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/test/rig"
)

var (
	kills = flag.Int("gangs.kills", 500, "how many processes TestKilled kills on each version of cgroups")
	seed  = flag.Uint64("gangs.seed", 0, "of TestKilled; 0 is another one each time")
)

// TestKilled kills launchers, monitors, holders, ranks and runtimes at any moment of a
// gang's life, and looks after each gang what the next commands have left of it.
func TestKilled(t *testing.T) {
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	t.Logf("-gangs.seed %d", *seed)
	everywhere(t, killMembers)
}

func killMembers(t *testing.T, n node) {
	r := rand.New(rand.NewPCG(*seed, 0))
	count := map[string]int{}
	for total := 0; total < *kills && !t.Failed(); {
		hits := n.killDuringGang(t, r)
		for _, kind := range hits {
			count[kind]++
		}
		total += len(hits)
	}
	for _, kind := range slices.Sorted(maps.Keys(count)) {
		t.Logf("%4d × %s", count[kind], kind)
	}
	for _, kind := range []string{"berth", "berth-monitor", "holder", "rank"} {
		if count[kind] == 0 && *kills >= 100 {
			t.Errorf("no %s was killed", kind)
		}
	}
}

// TestMembers: listMembers classifies each process of a gang; TestKilled can only kill, and miss,
// processes that it lists.
func TestMembers(t *testing.T) {
	everywhere(t, func(t *testing.T, n node) {
		n.mustRun(t, "run", "-d", "-n", "2", "--name", "known", busybox, "sleep", "1000")
		t.Cleanup(func() { n.RunBerth(t, "rm", "-f", "known") })
		want := map[string]int{"berth-monitor": 1, "holder": 1, "rank": 2}
		rig.WaitUntil(t, fmt.Sprintf("there are %v", want), func() bool {
			got := map[string]int{}
			for _, m := range n.listMembers() {
				got[m.kind]++
			}
			return maps.Equal(got, want)
		})
		n.mustRun(t, "rm", "-f", "known")
		n.expectNothingLeft(t)
	})
}

// killDuringGang is one gang and some kills, and returns what was killed.
func (n node) killDuringGang(t *testing.T, r *rand.Rand) (hits []string) {
	t.Helper()
	words := []string{"run", "-n", "2", "--gpus-per-rank", "1", "--name", "storm", "--stop-timeout", "1"}
	words = append(words, [][]string{{}, {"-d"}, {"-d", "--restart", "on-failure:2"}}[r.IntN(3)]...)
	words = append(words, "--network", []string{"private", "private", "none", "host"}[r.IntN(4)])
	words = append(words, busybox, "sh", "-c", `[ $RANK = 0 ] && sleep 0.2; sleep 0.6`)
	cmd := n.Command(n.Berth, words...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // killed, like as not
	}()
	time.Sleep(time.Duration(r.IntN(250)) * time.Millisecond)
	for range 1 + r.IntN(3) {
		if kind := n.killMember(r); kind != "" {
			hits = append(hits, kind)
		}
		time.Sleep(time.Duration(r.IntN(30)) * time.Millisecond)
	}
	// The next commands, which find a gang or none.
	if r.IntN(2) == 0 {
		<-ended
	}
	n.mustRun(t, "ps")
	if said := n.RunBerth(t, "rm", "-f", "storm"); said.Code != 0 && !strings.Contains(said.Err, "no such task") && !strings.Contains(said.Err, "storm") {
		t.Errorf("rm -f: %+v", said)
	}
	<-ended // which may have been a launch that the first rm came too early for
	if said := n.RunBerth(t, "rm", "-f", "storm"); said.Code > 1 {
		t.Errorf("rm -f: %+v", said)
	}
	// All devices are free when the last process has gone, which is when init of the host has reaped
	// the ranks. The next verb removes what a killed launch left half made.
	n.mustRun(t, "alloc", "--wait=2m", "8", "--", "true")
	n.mustRun(t, "ps")
	n.expectNothingLeft(t)
	if t.Failed() {
		t.Logf("killed %q of berth %q", hits, words)
	}
	return hits
}

// killMember ends one of the processes that are there, each kind as often as any other.
func (n node) killMember(r *rand.Rand) string {
	kinds := map[string][]member{}
	for _, m := range n.listMembers() {
		kinds[m.kind] = append(kinds[m.kind], m)
	}
	if len(kinds) == 0 {
		return ""
	}
	names := slices.Sorted(maps.Keys(kinds))
	some := kinds[names[r.IntN(len(names))]]
	m := some[r.IntN(len(some))]
	if fd, err := unix.PidfdOpen(m.pid, 0); err == nil {
		defer unix.Close(fd)
		// The pid is still the same process's, if it is still a member.
		if slices.Contains(n.listMembers(), m) && unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil {
			return m.kind
		}
	}
	return ""
}
