package gangs

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// TestFirstFailure: the others are asked to end, and the gang ends as the first did.
func TestFirstFailure(t *testing.T) {
	everywhere(t, func(t *testing.T, n node) {
		for _, tc := range []struct {
			name, others string
			grace        string
			asked        int
		}{
			{"they go when they are asked", `trap 'echo > /meet/asked-$RANK; exit 0' TERM`, "120", 2},
			{"they don't", `trap '' TERM`, "1", 0},
		} {
			t.Run(tc.name, func(t *testing.T) {
				dir := makeMeetingDir(t)
				script := `if [ $RANK = 2 ]; then until [ -e /meet/0 -a -e /meet/1 ]; do sleep 0.05; done; exit 7; fi
					` + tc.others + `; touch /meet/$RANK; while :; do sleep 0.1; done`
				said := n.RunBerth(t, "run", "-n", "3", "--stop-timeout", tc.grace, "-v", dir+":/meet", busybox, "sh", "-c", script)
				if said.Code != 7 {
					t.Errorf("exit code %d, want 7\n%s%s", said.Code, said.Out, said.Err)
				}
				if asked, _ := filepath.Glob(filepath.Join(dir, "asked-*")); len(asked) != tc.asked { // the pattern is right
					t.Errorf("%q were asked, and not %d", asked, tc.asked)
				}
				n.expectNothingLeft(t)
			})
		}
	})
}

// TestBarrier: no rank's command runs if one can't be.
func TestBarrier(t *testing.T) {
	everywhere(t, func(t *testing.T, n node) {
		dir := makeMeetingDir(t)
		said := n.RunBerth(t, "run", "-n", "3", "-v", dir+":/meet", busybox, "/no/such/program")
		if said.Code != 127 {
			t.Errorf("exit code %d, want 127\n%s%s", said.Code, said.Out, said.Err)
		}
		said = n.RunBerth(t, "run", "-n", "5", "--gpus-per-rank", "2", "-v", dir+":/meet", busybox, "touch", "/meet/ran")
		if said.Code != 75 && said.Code != 125 {
			t.Errorf("ten of eight GPUs: exit code %d\n%s%s", said.Code, said.Out, said.Err)
		}
		if _, err := os.Stat(filepath.Join(dir, "ran")); err == nil {
			t.Error("some rank has run")
		}
		n.expectNothingLeft(t)
	})
}

// TestSignals: what is sent to the command reaches every rank.
func TestSignals(t *testing.T) {
	everywhere(t, func(t *testing.T, n node) {
		for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGUSR1} {
			t.Run(signal.String(), func(t *testing.T) {
				dir := makeMeetingDir(t)
				g := n.startRun(t, "-n", "3", "--stop-timeout", "120", "-v", dir+":/meet", busybox, "sh", "-c",
					`for s in TERM INT USR1; do trap "echo $s > /meet/got-$RANK; exit 3" $s; done
					touch /meet/ready-$RANK; while :; do sleep 0.1; done`)
				for _, rank := range []string{"0", "1", "2"} {
					g.awaitFile(t, dir, "ready-"+rank)
				}
				rig.Must(t, g.Cmd.Process.Signal(signal))
				if code := g.Wait(t); code != 3 {
					t.Errorf("exit code %d, want 3\n%s", code, g.readOutput(t))
				}
				for _, rank := range []string{"0", "1", "2"} {
					got, err := os.ReadFile(filepath.Join(dir, "got-"+rank))
					want := strings.TrimPrefix(unixName(signal), "SIG") + "\n"
					// The first that ends has the others asked, if the signal wasn't quicker.
					if err != nil || string(got) != want && string(got) != "TERM\n" {
						t.Errorf("rank %s got %q, %v, and not %s", rank, got, err, signal)
					}
				}
				n.expectNothingLeft(t)
			})
		}
	})
}

func unixName(s syscall.Signal) string {
	return map[syscall.Signal]string{syscall.SIGTERM: "SIGTERM", syscall.SIGINT: "SIGINT", syscall.SIGUSR1: "SIGUSR1"}[s]
}

// TestLogs: each line says whose it is, and no line is cut by another's.
func TestLogs(t *testing.T) {
	everywhere(t, func(t *testing.T, n node) {
		const script = `i=0; while [ $i -lt 200 ]; do echo "line $i of $RANK with words enough to be cut"; i=$((i+1)); done; echo last $RANK >&2`
		said := n.RunBerth(t, "run", "-n", "4", busybox, "sh", "-c", script)
		if said.Code != 0 {
			t.Fatalf("%+v", said)
		}
		for _, rank := range []string{"0", "1", "2", "3"} {
			got := rankLines(said.Out, "rank-"+rank)
			if len(got) != 200 {
				t.Fatalf("rank %s has %d lines of 200: %q …", rank, len(got), firstLine(said.Out))
			}
			for i, line := range got {
				if want := "line " + strconv.Itoa(i) + " of " + rank + " with words enough to be cut"; line != want {
					t.Fatalf("rank %s said %q, want %q", rank, line, want)
				}
			}
			if got := rankLines(said.Err, "rank-"+rank); len(got) != 1 || got[0] != "last "+rank {
				t.Errorf("rank %s said to standard error %q", rank, got)
			}
		}
		if strings.Contains(said.Out, "\x1b") {
			t.Error("there are colours, and no terminal")
		}
		n.expectNothingLeft(t)
	})
}

// TestVerbs: a gang that is left alone is one, and so are its ranks.
func TestVerbs(t *testing.T) {
	everywhere(t, func(t *testing.T, n node) {
		n.mustRun(t, "run", "-d", "-n", "2", "--gpus-per-rank", "1", "--name", "train", busybox, "sh", "-c",
			`echo hello from $RANK; trap 'exit 0' TERM; while :; do sleep 0.1; done`)
		t.Cleanup(func() { n.RunBerth(t, "rm", "-f", "train") })
		rig.WaitUntil(t, "both have said something", func() bool {
			return strings.Count(n.mustRun(t, "logs", "train"), "hello from") == 2
		})
		if said := n.mustRun(t, "ps"); strings.Count(said, "train") < 3 {
			t.Errorf("ps doesn't show a gang and two ranks:\n%s", said)
		}
		if said := n.mustRun(t, "exec", "train.rank-1", "sh", "-c", "cat /proc/1/comm; hostname; cat /etc/hosts"); !strings.Contains(said, "rank-0") || !strings.Contains(said, "rank-1") {
			t.Errorf("inside a rank:\n%s", said)
		}
		if said := n.mustRun(t, "logs", "train.rank-1"); strings.Contains(said, "from 0") || !strings.Contains(said, "hello from 1") {
			t.Errorf("a rank's log:\n%s", said)
		}
		if leases := n.Leases(t); len(leases) != 1 || len(leases[0].Devices) != 2 {
			t.Errorf("a gang has one lease of two devices, and not %+v", leases)
		}
		n.mustRun(t, "stop", "train")
		n.mustRun(t, "rm", "train")
		n.expectNothingLeft(t)
	})
}

// TestRestart: a gang is started again as a whole.
func TestRestart(t *testing.T) {
	n := sharedServer(t, "dgx-h100", "v2")
	dir := makeMeetingDir(t)
	n.mustRun(t, "run", "-d", "-n", "2", "--restart", "on-failure:2", "--name", "again", "-v", dir+":/meet", busybox, "sh", "-c",
		`echo x >> /meet/count-$RANK; cd /meet
			[ $RANK = 0 ] && { until cmp -s count-0 count-1; do sleep 0.05; done; exit 4; }; sleep 1000`)
	t.Cleanup(func() { n.RunBerth(t, "rm", "-f", "again") })
	if code := strings.TrimSpace(n.mustRun(t, "wait", "again")); code != "4" {
		t.Errorf("it ended with %s", code)
	}
	for _, rank := range []string{"0", "1"} {
		if got, err := os.ReadFile(filepath.Join(dir, "count-"+rank)); string(got) != "x\nx\nx\n" {
			t.Errorf("rank %s ran %q, %v", rank, got, err)
		}
	}
	n.mustRun(t, "rm", "again")
	n.expectNothingLeft(t)
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

// TestNothingLeft: whatever a gang's network, nothing is left when its command has ended.
func TestNothingLeft(t *testing.T) {
	everywhere(t, func(t *testing.T, n node) {
		for _, network := range []string{"private", "none", "host"} {
			for _, size := range []string{"1", "4"} {
				t.Run(network+" "+size, func(t *testing.T) {
					n.mustRun(t, "run", "-n", size, "--gpus-per-rank", "1", "--network", network, busybox, "true")
					n.expectNothingLeft(t)
				})
			}
		}
	})
}
