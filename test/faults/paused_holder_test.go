package faults

import (
	"strings"
	"sync"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// TestPausedHolder: a container that is paused is ended by release --force, on both versions of cgroups.
func TestPausedHolder(t *testing.T) {
	t.Parallel()
	for version, freeze := range map[string]string{
		"v1": "echo FROZEN >/sys/fs/cgroup/freezer/berth/*/container/freezer.state",
		"v2": "echo 1 >/sys/fs/cgroup/berth/*/container/cgroup.freeze",
	} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			n, err := shared.Start("one-gpu", version)
			rig.Must(t, err)
			id := strings.TrimSpace(n.Do(t, n.Berth, "run", "-d", "--gpus", "1", rig.ImagePath(t, "busybox"), "sleep", "1000"))
			n.Do(t, "sh", "-c", strings.Replace(freeze, "*", id[:12], 1))
			n.Do(t, n.Berth, "release", "--force", n.Leases(t)[0].ID)
			n.Do(t, n.Berth, "alloc", "1", "true")
			n.Do(t, n.Berth, "rm", "-f", id)
		})
	}
}

// TestFrozenTask: a task that has frozen itself in a cgroup of its own below its container's is
// ended by stop, rm -f and kill.
func TestFrozenTask(t *testing.T) {
	t.Parallel()
	n, err := shared.Start("one-gpu", "v1")
	rig.Must(t, err)
	const freeze = "mkdir /c && mount -t cgroup -o freezer none /c && mkdir /c/below && (sleep 1000 & echo $! >/c/below/cgroup.procs) && " +
		"(echo $$ >/c/below/cgroup.procs; echo FROZEN >/c/below/freezer.state)"
	for _, verb := range [][]string{{"stop", "-t", "1"}, {"rm", "-f"}, {"kill"}} {
		t.Run(verb[0], func(t *testing.T) {
			id := strings.TrimSpace(n.Do(t, n.Berth, "run", "-d", "--gpus", "1", "--cap-add", "SYS_ADMIN", "--security-opt", "seccomp=unconfined",
				rig.ImagePath(t, "busybox"), "sh", "-c", freeze))
			n.Do(t, "sh", "-c", "until grep -q FROZEN /sys/fs/cgroup/freezer/berth/"+id[:12]+"/container/below/freezer.state; do sleep 0.01; done 2>/dev/null")
			n.Do(t, n.Berth, append(verb, id)...)
			rig.WaitUntil(t, "the GPU is free", func() bool { return len(n.Leases(t)) == 0 })
		})
	}
}

// TestFrozenGang: a rank has moved the other rank and the process that holds the gang's namespaces to a cgroup of its
// own, and frozen it. The gang is ended by stop, rm -f, kill and its timeout.
func TestFrozenGang(t *testing.T) {
	t.Parallel()
	n, err := shared.Start("dgx-h100", "v1")
	rig.Must(t, err)
	const freeze = "if [ $RANK = 1 ]; then exec sleep 1000; fi; mkdir /tmp/c && mount -t cgroup -o freezer none /tmp/c && mkdir /tmp/c/below && " +
		"until pid=$(pidof sleep); do sleep 0.01; done; for p in 1 $pid; do echo $p >/tmp/c/below/cgroup.procs; done; " +
		"echo FROZEN >/tmp/c/below/freezer.state; exec sleep 1000"
	for _, verb := range [][]string{{"stop", "-t", "1"}, {"rm", "-f"}, {"kill"}, {}} {
		name := strings.Join(append([]string{"frozen"}, verb[:min(1, len(verb))]...), "-")
		t.Run(name, func(t *testing.T) {
			words := []string{"run", "-d", "-n", "2", "--network", "none", "--gpus-per-rank", "1", "--cap-add", "SYS_ADMIN", "--security-opt", "seccomp=unconfined"}
			if len(verb) == 0 {
				words = append(words, "--timeout", "5", "--stop-timeout", "1")
			}
			id := strings.TrimSpace(n.Do(t, n.Berth, append(words, rig.ImagePath(t, "busybox"), "sh", "-c", freeze)...))
			n.Do(t, "sh", "-c", "until cat $(find /sys/fs/cgroup/freezer/berth -path '*/below/freezer.state') | grep -q FROZEN; do sleep 0.01; done 2>/dev/null")
			if len(verb) > 0 {
				n.Do(t, n.Berth, append(verb, id)...)
			}
			rig.WaitUntil(t, "the GPUs are free", func() bool { return len(n.Leases(t)) == 0 })
			if log := n.Run(t, n.Command(n.Berth, "logs", id)); strings.Contains(log.Out+log.Err, "hasn't ended") {
				t.Errorf("%+v", log)
			}
		})
	}
}

// TestUnendableHolder: where a holder can't be ended, release says so after half a minute, and the lease stays.
func TestUnendableHolder(t *testing.T) {
	t.Parallel()
	n, err := shared.Start("one-gpu", "v1")
	rig.Must(t, err)
	const group = "/sys/fs/cgroup/freezer/unendable-test"
	end := holdGPU(t, n, []string{"sh", "-c", "mkdir -p " + group + "; echo 0 >" + group + `/cgroup.procs; exec "$@"`, "sh"})
	lease := n.Leases(t)[0].ID
	n.Do(t, "sh", "-c", "echo FROZEN >"+group+"/freezer.state")
	said := n.Run(t, n.Command(n.Berth, "release", "--force", lease))
	want := "berth: end holder of lease " + lease + ": it was killed and hasn't ended after 30s: process "
	if said.Code != 1 || !strings.HasPrefix(said.Err, want) || strings.Count(said.Err, "\n") != 1 {
		t.Errorf("%+v", said)
	}
	if len(n.Leases(t)) != 1 {
		t.Error("the lease is gone")
	}
	n.Do(t, "sh", "-c", "echo THAWED >"+group+"/freezer.state")
	end()
}

// TestTracedHolder: a debugger outside of the lease keeps the holder from ending. release, stop and rm -f name it, and once
// it has ended the GPUs are free.
func TestTracedHolder(t *testing.T) {
	t.Parallel()
	program, err := shared.Compile("trace_exit", "testdata/trace_exit.c", "-static")
	rig.Must(t, err)
	n, err := shared.Start("one-gpu", "v2")
	rig.Must(t, err)
	id := strings.TrimSpace(n.Do(t, n.Berth, "run", "-d", "--name", "traced", "--gpus", "1", rig.ImagePath(t, "busybox"), "sleep", "1000"))
	lease := n.Leases(t)[0]
	cmd := n.Command(program, strings.TrimSpace(n.Do(t, n.Berth, "inspect", "--format", "{{.State.Pid}}", id)))
	_, out := rig.StartReading(t, cmd)
	if line, err := out.ReadString('\n'); line != "traced\n" {
		t.Fatalf("%q, %v", line, err)
	}
	var all sync.WaitGroup
	for words, want := range map[string]string{
		"release --force " + lease.ID: "berth: end holder of lease " + lease.ID + ": it was killed and hasn't ended after 30s: process ",
		"stop -t 0 " + id:             "berth: task traced: it was killed and hasn't ended after 30s: process ",
	} {
		all.Go(func() {
			said := n.Run(t, n.Command(n.Berth, strings.Fields(words)...))
			if said.Code != 1 || !strings.HasPrefix(said.Err, want) || !strings.HasSuffix(said.Err, " (trace_exit): end that\n") || strings.Count(said.Err, "\n") != 1 {
				t.Errorf("%s: %+v", words, said)
			}
		})
	}
	all.Wait()
	rig.Must(t, cmd.Process.Kill())
	n.Do(t, n.Berth, "rm", "-f", id)
	n.Do(t, n.Berth, "alloc", "1", "true")
}
