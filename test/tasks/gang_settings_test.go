package tasks

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/test/rig"
)

// TestGangNames: a task can't have the name of a rank.
func TestGangNames(t *testing.T) {
	s := startApart(t, "v2", "crun")
	s.detach(t, "--name", "train", "-n", "1", "--network", "none", rig.ImagePath(t, "busybox"), "sleep", "1000")
	got := s.RunBerth(t, "run", "-d", "--name", "train.rank-0", rig.ImagePath(t, "busybox"), "sleep", "1000")
	if got.Code != 125 || !strings.Contains(got.Err, "train.rank-0 is a name of a rank of a gang") {
		t.Errorf("%+v", got)
	}
	s.detach(t, "--name", "other.rank-0", rig.ImagePath(t, "busybox"), "sleep", "1000")
	got = s.RunBerth(t, "run", "-d", "--name", "other", "-n", "1", "--network", "none", rig.ImagePath(t, "busybox"), "sleep", "1000")
	if got.Code != 125 || !strings.Contains(got.Err, "is called other.rank-0 already") {
		t.Errorf("%+v", got)
	}
}

// TestGangEnvironmentFlags: variables given by flags win over those that berth sets, and variables that an outer
// launcher left in the environment aren't passed on.
func TestGangEnvironmentFlags(t *testing.T) {
	s := startApart(t, "v2", "crun")
	file := t.TempDir() + "/env"
	rig.Must(t, os.WriteFile(file, []byte("PMIX_RANK\nPMI_RANK=5\nMINE\n"), 0o600))
	said := s.Run(t, s.Command("env", "SLURM_PROCID=7", "PMIX_RANK=7", "MINE=7", s.Berth, "run", "-n", "1", "--network", "none",
		"-e", "RANK=9", "-e", "SLURM_PROCID", "-e", "OMPI_MCA_btl=tcp", "--env-file", file,
		rig.ImagePath(t, "busybox"), "sh", "-c", "echo $RANK,$SLURM_PROCID,$OMPI_MCA_btl,$PMIX_RANK,$PMI_RANK,$MINE"))
	if said.Out != "rank-0 | 9,,tcp,,5,7\n" {
		t.Errorf("%+v", said)
	}
	s.fails(t, 125, `NICs need GPUs: add --gpus-per-rank 1, or gpus = "1" in the file`, "run", "-n", "2", "--nics", "auto", rig.ImagePath(t, "busybox"), "true")
	s.fails(t, 125, `--gpus-per-rank: request "2,nics=": "" isn't a NIC; known are auto, none, a count (2), and names (mlx5_0+mlx5_3)`, "run", "-n", "2", "--gpus-per-rank", "2,nics=", rig.ImagePath(t, "busybox"), "true")
	for text, want := range map[string]string{
		"gpus = \"2,nics=\"": `role "a": gpus: request "2,nics=": "" isn't a NIC; known are auto, none, a count (2), and names (mlx5_0+mlx5_3)`, "replicas = \"two\"": `role "a": replicas is a whole number, such as replicas = 2`,
		"memory = \"much\"": `role "a": memory: "much" is not a size, such as 512m or 64g`,
	} {
		file := filepath.Join(t.TempDir(), "gang.toml")
		rig.Must(t, os.WriteFile(file, fmt.Appendf(nil, "image = %q\n[[role]]\nname = \"a\"\n%s\n", rig.ImagePath(t, "busybox"), text), 0o600))
		s.fails(t, 125, "--gang "+file+": "+want, "run", "--gang", file)
	}
	long := strings.Repeat("long", 15)
	s.fails(t, 125, fmt.Sprintf("name %q has 60 characters, and this gang's can have 56 at most: the name of a rank (NAME.rank-0) has at most 63", long),
		"run", "-n", "2", "--name", long, rig.ImagePath(t, "busybox"), "true")
}

// TestGangInspectWhy: what a rank has is explained by what it sees.
func TestGangInspectWhy(t *testing.T) {
	s := startApart(t, "v2", "crun")
	id := s.detach(t, "--name", "why", "-n", "2", "--gpus-per-rank", "1", "--network", "none", rig.ImagePath(t, "busybox"), "sleep", "1000")
	if out := s.RunBerth(t, "inspect", "--why", "why.rank-0").Out; strings.Contains(out, "no accelerator") || strings.Count(out, "/dev/nvidia") < 4 {
		t.Error(out)
	}
	s.fails(t, 1, `release "why.rank-0": it is a rank, and the lease is its gang's; berth release `+id+` ends the gang`, "release", "why.rank-0")
	if out := s.RunBerth(t, "inspect", "--why", "why").Out; !strings.Contains(out, "berth inspect --why why.rank-0") {
		t.Error(out)
	}
}

// TestGangCapabilities: what leads out of a gang no rank has, whatever is asked for.
func TestGangCapabilities(t *testing.T) {
	onGangServers(t, func(t *testing.T, s server) {
		for _, flags := range [][]string{{"--privileged"}, {"--cap-add", "ALL"}} {
			got := s.runGang(t, slices.Concat([]string{"-n", "1"}, flags, []string{rig.ImagePath(t, "busybox"), "sh", "-c", "sed -n 's/^CapEff:\t//p' /proc/self/status"})...)
			caps, err := strconv.ParseUint(strings.TrimPrefix(strings.TrimSpace(got.Out), "rank-0 | "), 16, 64)
			if err != nil || caps&(1<<unix.CAP_SYS_PTRACE|1<<unix.CAP_NET_ADMIN) != 0 || caps&(1<<unix.CAP_SYS_ADMIN) == 0 {
				t.Errorf("%v: %+v", flags, got)
			}
		}
		s.fails(t, 125, "--cap-add SYS_PTRACE: no rank of a gang has it: the ranks share a PID namespace, so a rank could trace another's container while it is created",
			"run", "-n", "1", "--network", "none", "--cap-add", "SYS_PTRACE", rig.ImagePath(t, "busybox"), "true")
		if got := s.runGang(t, "-n", "1", "--network", "none", "--cap-add", "NET_ADMIN", rig.ImagePath(t, "busybox"), "true"); got != (rig.Said{}) {
			t.Errorf("%+v", got)
		}
	})
}

// TestGangEndsWhileStartIsBlocked: a gang can be ended while a rank keeps the others from starting.
func TestGangEndsWhileStartIsBlocked(t *testing.T) {
	onGangServers(t, func(t *testing.T, s server) {
		line := "while :; do for p in /proc/[0-9]*; do p=${p#/proc/}; [ $p = 1 ] || [ $p = $$ ] || kill -STOP $p 2>/dev/null; done; done"
		if got := s.runGang(t, "-n", "4", "--network", "none", "--timeout", "2", "--stop-timeout", "1", rig.ImagePath(t, "busybox"), "sh", "-c", line); got.Code == 0 {
			t.Errorf("%+v", got)
		}
	})
}

// TestGangStopRank: a rank that is stopped isn't started again, and neither are the others.
func TestGangStopRank(t *testing.T) {
	onGangServers(t, func(t *testing.T, s server) {
		id := s.detach(t, "--name", "whole", "-n", "2", "--network", "none", "--restart", "5", rig.ImagePath(t, "busybox"), "sh", "-c", "trap 'exit 3' TERM; "+asks)
		s.awaitTraps(t, "whole.rank-1")
		s.prints(t, "whole.rank-1\n", "stop", "whole.rank-1")
		s.prints(t, "3\n", "wait", "whole")
		s.prints(t, "whole\n", "rm", "whole")
		s.expectNothingLeft(t, id)
	})
}

// TestGangOutput: all that the ranks write is shown, also when it is more than their logs hold, and
// however slowly it is read.
func TestGangOutput(t *testing.T) {
	onGangServers(t, func(t *testing.T, s server) {
		const lines = 40000
		r, w, err := os.Pipe()
		rig.Must(t, err)
		defer r.Close()
		cmd := s.Command(s.Berth, "run", "--runtime", s.runtime, "--log-opt", "max-size=64k", "-n", "2", "--network", "none",
			rig.ImagePath(t, "busybox"), "seq", strconv.Itoa(lines))
		cmd.Stdout = w
		rig.Must(t, cmd.Start())
		w.Close()
		next, begun := map[string]int{}, map[string]string{}
		for read := bufio.NewScanner(r); read.Scan(); {
			rank, number, _ := strings.Cut(read.Text(), " | ")
			want := strconv.Itoa(next[rank] + 1)
			number, begun[rank] = begun[rank]+number, ""
			if number != want && strings.HasPrefix(want, number) { // its rest was late, and another rank's output came between
				begun[rank] = number
				continue
			}
			if next[rank]++; number != want {
				_ = cmd.Process.Kill()
				t.Fatalf("%q, want %s", read.Text(), want)
			}
			if next[rank]%5000 == 0 {
				time.Sleep(20 * time.Millisecond)
			}
		}
		if err := cmd.Wait(); err != nil || next["rank-0"] != lines || next["rank-1"] != lines {
			t.Errorf("%v, %v", next, err)
		}
	})
}

// TestGangOutputUnread: a gang can be ended while the command that shows its output is blocked, because
// that isn't read.
func TestGangOutputUnread(t *testing.T) {
	s := startApart(t, "v2", "crun")
	r, w, err := os.Pipe()
	rig.Must(t, err)
	defer r.Close()
	id := t.TempDir() + "/id"
	cmd := s.Command(s.Berth, "run", "--cidfile", id, "--log-opt", "max-size=64k", "--name", "unread", "-n", "2", "--network", "none",
		rig.ImagePath(t, "busybox"), "yes")
	cmd.Stdout = w
	rig.Must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }) // its output is still unread
	w.Close()
	rig.WaitUntil(t, "a rank waits for its reader", func() bool {
		return s.Run(t, s.Command("sh", "-c", "cat /var/lib/berth/tasks/$(cat "+id+")/run.json && sleep 1")).Code == 0
	})
	s.prints(t, "unread\n", "rm", "-f", "unread")
	text, err := os.ReadFile(id)
	rig.Must(t, err)
	s.expectNothingLeft(t, string(text))
}
