package tasks

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/test/rig"
)

// onGangServers runs a test on servers that have a network of their own.
func onGangServers(t *testing.T, test func(*testing.T, server)) {
	t.Helper()
	for _, p := range testutil.Pairs(t) {
		t.Run(p.Runtime+" "+p.Cgroup, func(t *testing.T) { test(t, startApart(t, p.Cgroup, p.Runtime)) })
	}
}

func startApart(t *testing.T, cgroup, runtime string) server {
	t.Helper()
	n := shared.Once(t, "apart "+cgroup, func() (*rig.Node, error) { return shared.StartApart("dgx-h100", cgroup) })
	return server{n, runtime}
}

// runGang runs one in the foreground, to its end, and fails if something of it is left.
func (s server) runGang(t *testing.T, words ...string) rig.Said {
	t.Helper()
	id := t.TempDir() + "/id"
	got := s.RunBerth(t, append([]string{"run", "--runtime", s.runtime, "--cidfile", id}, words...)...)
	if text, err := os.ReadFile(id); err == nil {
		s.expectNothingLeft(t, string(text))
	}
	return got
}

// expectNothingLeft fails if something of a gang is left.
func (s server) expectNothingLeft(t *testing.T, id string) {
	t.Helper()
	for _, l := range s.Leases(t) {
		if l.Owner.Container == id {
			t.Errorf("lease: %+v", l)
		}
	}
	for _, look := range []string{
		"ls -d /var/lib/berth/tasks/" + id, "ip -o link | grep berth" + id[:10], "find /sys/fs/cgroup -name " + id + " -not -path '*/unified/*'",
		"grep /var/lib/berth/tasks/" + id + " /proc/self/mountinfo", "grep -H " + id + " /proc/[0-9]*/cgroup | grep -v deleted",
	} {
		if got := s.Run(t, s.Command("sh", "-c", look)).Out; got != "" {
			t.Errorf("%s:\n%s", look, got)
		}
	}
}

// sortLines are the lines of a text: those of several ranks come in any order.
func sortLines(text string) []string {
	return slices.Sorted(slices.Values(lines(strings.TrimSpace(text))))
}

// TestGang: the ranks share what they have to, and each has its own of the rest.
func TestGang(t *testing.T) {
	onGangServers(t, func(t *testing.T, s server) {
		got := s.runGang(t, "-n", "3", "--gpus-per-rank", "1", rig.ImagePath(t, "busybox"), "sh", "-c", `
			echo $RANK $LOCAL_RANK=$BERTH_RANK_GPUS $WORLD_SIZE $MASTER_ADDR:$MASTER_PORT $(ls /dev | grep -c '^nvidia[0-9]')
			echo x > /dev/shm/$RANK; while [ $(ls /dev/shm | wc -l) -lt 3 ]; do sleep 0.01; done
			echo $(cat /proc/1/comm) $(grep -c rank- /etc/hosts) $(hostname)`)
		name := strings.TrimSpace(got.Out[strings.LastIndexByte(strings.TrimSpace(got.Out), ' ')+1:])
		want := []string{
			"rank-0 | 0 0=0 3 rank-0:29500 3", "rank-0 | catatonit 1 " + name, "rank-1 | 1 1=1 3 rank-0:29500 3", "rank-1 | catatonit 1 " + name,
			"rank-2 | 2 2=2 3 rank-0:29500 3", "rank-2 | catatonit 1 " + name,
		}
		if !slices.Equal(sortLines(got.Out), want) || got.Code != 0 || got.Err != "" {
			t.Errorf("%+v, want %v", got, want)
		}
	})
}

// TestGangBinds: a rank sees no GPU but its own if that is asked for, and none can open
// another's.
func TestGangBinds(t *testing.T) {
	onGangServers(t, func(t *testing.T, s server) {
		got := s.runGang(t, "-n", "2", "--gpus-per-rank", "2", "--bind-gpus", "rank", rig.ImagePath(t, "busybox"), "sh", "-c",
			`echo $LOCAL_RANK $(ls /dev | grep '^nvidia[0-9]'); for i in 0 1 2 3 4 5 6 7; do mknod /tmp/$i c 195 $i 2>/dev/null && echo made; done; true`)
		var seen []string
		for _, l := range sortLines(got.Out) {
			words := strings.Fields(strings.TrimPrefix(l, "rank-"))
			if len(words) != 5 {
				t.Fatalf("%+v", got)
			}
			if words = words[2:]; len(words) != 3 || words[0] != "0" {
				t.Fatalf("%+v", got)
			}
			seen = append(seen, words[1:]...)
		}
		slices.Sort(seen)
		if len(slices.Compact(seen)) != 4 || got.Code != 0 {
			t.Errorf("%+v", got)
		}
	})
}

// TestGangHolder: of what holds the namespaces there is nothing to be had, whatever a rank
// may do.
func TestGangHolder(t *testing.T) {
	onGangServers(t, func(t *testing.T, s server) {
		for _, flags := range [][]string{nil, {"--privileged"}, {"--cap-add", "ALL", "--security-opt", "seccomp=unconfined"}} {
			got := s.runGang(t, slices.Concat([]string{"-n", "1", "--gpus-per-rank", "1"}, flags, []string{rig.ImagePath(t, "busybox"), "sh", "-c", `
				exec 2>/dev/null; ls -A /proc/1/root/ /proc/1/cwd/ | grep -v : | grep .
				nsenter -t 1 -m ls -A / 2>/dev/null
				tr '\0' '\n' < /proc/1/environ 2>/dev/null
				cat < /proc/1/exe > /dev/null 2>&1; { echo > /proc/1/exe; } 2>/dev/null && echo written
				kill -9 1; kill -STOP 1; sleep 0.1; grep -E '^State:.*[TZX]' /proc/1/status
				for n in 0 1 2 3 4 5 6 7; do mknod /tmp/n$n c 195 $n 2>/dev/null && : < /tmp/n$n && echo opened; done
				true`})...)
			if got != (rig.Said{}) {
				t.Errorf("%v: %+v", flags, got)
			}
		}
	})
}

// TestGangHolderProgram: a process that reaches the holder through /proc can't write to its program:
// that is on a read-only mount that is attached nowhere.
func TestGangHolderProgram(t *testing.T) {
	onGangServers(t, func(t *testing.T, s server) {
		id := s.detach(t, "-n", "1", "--network", "none", rig.ImagePath(t, "busybox"), "sleep", "1000")
		proc := "/proc/" + s.Do(t, "cat", "/var/lib/berth/tasks/"+id+"/bundle/pid")
		exe := proc + "/exe"
		var st unix.Statfs_t
		rig.Must(t, unix.Statfs(exe, &st))
		if st.Flags&unix.ST_RDONLY == 0 {
			t.Errorf("%s is on a mount with flags %#x", exe, st.Flags)
		}
		if err := unix.Mount("", exe, "", unix.MS_REMOUNT|unix.MS_BIND, ""); err == nil {
			t.Error("it can be made writable")
		}
		if got := s.Do(t, "sh", "-c", "ls -A "+proc+"/root/; wc -l <"+proc+"/mountinfo; tr '\\0' ' ' <"+proc+"/cmdline"); got != "catatonit\n2\n@catatonit -P " {
			t.Errorf("its root, number of mounts and arguments: %q", got)
		}
		s.prints(t, id+"\n", "rm", "-f", id)
		s.expectNothingLeft(t, id)
	})
}

// TestGangFails: the first failure ends the other ranks, and its code is the gang's; a rank that
// ignores the stop signal is killed when the stop timeout is over.
func TestGangFails(t *testing.T) {
	onGangServers(t, func(t *testing.T, s server) {
		got := s.runGang(t, "-n", "3", "--stop-timeout", "1", "--name", "train", rig.ImagePath(t, "busybox"), "sh", "-c", `
			case $RANK in
			0) trap 'echo asked; exit 0' TERM; while :; do sleep 0.01; done;;
			1) trap '' TERM; while :; do sleep 0.01; done;;
			2) sleep 0.5; echo failing; exit 7;;
			esac`)
		if want := []string{"rank-0 | asked", "rank-2 | failing"}; !slices.Equal(sortLines(got.Out), want) || got.Code != 7 ||
			got.Err != "berth: gang train: rank-2 failed first\n" {
			t.Errorf("%+v", got)
		}
	})
}

// TestGangStarts: nothing starts if not all can be made.
func TestGangStarts(t *testing.T) {
	onGangServers(t, func(t *testing.T, s server) {
		dir := t.TempDir()
		file := dir + "/gang.toml"
		rig.Must(t, os.WriteFile(file, fmt.Appendf(nil, "image = %q\nnetwork = \"none\"\n"+`
			volumes = ["%s:/out"]
			[[role]]
			name = "good"
			command = ["sh", "-c", "echo > /out/started"]
			[[role]]
			name = "bad"
			command = ["/etc/passwd"]
			`, rig.ImagePath(t, "busybox"), dir), 0o600))
		got := s.runGang(t, "--gang", file)
		if got.Code != 126 || got.Out != "" || !strings.HasPrefix(got.Err, "berth: bad-0: ") || len(lines(strings.TrimSpace(got.Err))) != 1 {
			t.Errorf("%+v", got)
		}
		if _, err := os.Stat(dir + "/started"); err == nil {
			t.Error("a rank has started")
		}
	})
}

// TestGangVerbs: verbs take a gang as one task, and each rank too.
func TestGangVerbs(t *testing.T) {
	onGangServers(t, func(t *testing.T, s server) {
		id := s.detach(t, "--name", "train", "-n", "2", "--gpus-per-rank", "1", rig.ImagePath(t, "busybox"), "sh", "-c", "trap 'echo hup' HUP; trap 'exit 3' TERM; echo up $RANK; "+asks)
		rig.WaitUntil(t, "both are up", func() bool { return len(sortLines(s.RunBerth(t, "logs", "train").Out)) == 2 })
		if got, want := sortLines(s.RunBerth(t, "logs", "train").Out), []string{"rank-0 | up 0", "rank-1 | up 1"}; !slices.Equal(got, want) {
			t.Errorf("%q", got)
		}
		s.prints(t, "up 1\n", "logs", "train.rank-1")
		s.prints(t, "rank-1\n", "exec", "train.rank-1", "sh", "-c", "echo $BERTH_ROLE-$RANK")
		rows := lines(strings.TrimSpace(s.RunBerth(t, "ps").Out))
		if len(rows) != 4 || !strings.Contains(rows[1], "gang of 2") || !strings.HasSuffix(rows[2], " train.rank-0") || !strings.HasSuffix(rows[3], " train.rank-1") {
			t.Errorf("%q", rows)
		}
		s.prints(t, id+"\n", "ps", "-q")
		s.fails(t, 1, "task train.rank-0: it is a rank of a gang; berth rm train removes the gang", "rm", "-f", "train.rank-0")
		s.fails(t, 125, "task train is a gang; berth exec train.rank-0 runs a command in one of its ranks", "exec", "train", "true")
		s.fails(t, 1, `task "train.rank-2": there is no such task: the ranks of train are rank-0, rank-1; berth ps -a lists all`, "stop", "train.rank-2")
		s.prints(t, "train\n", "kill", "-s", "HUP", "train")
		rig.WaitUntil(t, "both have heard", func() bool { return strings.Count(s.RunBerth(t, "logs", "train").Out, "hup") == 2 })
		s.prints(t, "train\n", "stop", "train")
		s.prints(t, "3\n", "wait", "train")
		if state := s.state(t, "train"); state != "exited" {
			t.Error(state)
		}
		s.prints(t, "train\n", "rm", "train")
		s.expectNothingLeft(t, id)
	})
}

// TestGangRestart: all begin anew, with a new /dev/shm.
func TestGangRestart(t *testing.T) {
	onGangServers(t, func(t *testing.T, s server) {
		dir := t.TempDir()
		for _, rank := range []string{"0", "1"} { // rank 0 counts rank 1's lines, also before it has any
			rig.Must(t, os.WriteFile(dir+"/"+rank, nil, 0o644))
		}
		got := s.runGang(t, "-n", "2", "--restart", "2", "-v", dir+":/out", rig.ImagePath(t, "busybox"), "sh", "-c", `
			[ -e /dev/shm/mine-$RANK ] && echo stale; echo > /dev/shm/mine-$RANK; echo life >> /out/$RANK
			[ $RANK = 1 ] && exec sleep 1000
			while [ $(wc -l < /out/0) -gt $(wc -l < /out/1) ]; do sleep 0.01; done; exit 4`)
		for _, rank := range []string{"0", "1"} {
			if lives, err := os.ReadFile(dir + "/" + rank); err != nil || string(lives) != "life\nlife\nlife\n" {
				t.Errorf("rank %s: %q, %v", rank, lives, err)
			}
		}
		if got.Code != 4 || strings.Contains(got.Out, "stale") {
			t.Errorf("%+v", got)
		}
	})
}

// TestGangNetworks: each kind is what it says, and two gangs don't meet.
func TestGangNetworks(t *testing.T) {
	onGangServers(t, func(t *testing.T, s server) {
		for kind, want := range map[string]string{"none": "lo", "private": "lo eth0", "host": "lo"} { // the host has no other here
			got := s.runGang(t, "-n", "2", "--network", kind, rig.ImagePath(t, "busybox"), "sh", "-c", `
				if [ $RANK = 0 ]; then nc -l -p 29533 -e echo hello; else
				until nc rank-0 29533 </dev/null 2>/dev/null; do sleep 0.05; done; echo $(ls /sys/class/net | sort -r); fi`)
			if out := sortLines(got.Out); !slices.Equal(out, []string{"rank-1 | hello", "rank-1 | " + want}) || got.Code != 0 {
				t.Errorf("%s: %+v", kind, got)
			}
		}
	})
}

// TestGangStore: what one rank puts into the store of Horovod's rendezvous, another finds.
func TestGangStore(t *testing.T) {
	onGangServers(t, func(t *testing.T, s server) {
		for _, network := range []string{"private", "none"} {
			got := s.runGang(t, "-n", "2", "--network", network, rig.ImagePath(t, "busybox"), "sh", "-c", `
				ask() { printf "$1 /global/0 HTTP/1.0\r\nContent-Length: ${#2}\r\n\r\n$2" | nc $HOROVOD_GLOO_RENDEZVOUS_ADDR $HOROVOD_GLOO_RENDEZVOUS_PORT; }
				[ $HOROVOD_RANK = 0 ] && ask PUT here >/dev/null
				until ask GET "" | tail -n 1 | grep -q here; do sleep 0.05; done; echo found`)
			if want := []string{"rank-0 | found", "rank-1 | found"}; !slices.Equal(sortLines(got.Out), want) || got.Code != 0 || got.Err != "" {
				t.Errorf("%s: %+v", network, got)
			}
		}
	})
}

// TestGangPorts: two gangs in the host's network have ports of their own.
func TestGangPorts(t *testing.T) {
	onGangServers(t, func(t *testing.T, s server) {
		s.detach(t, "--name", "one", "-n", "2", "--network", "host", rig.ImagePath(t, "busybox"), "sh", "-c", "echo $MASTER_PORT; exec sleep 1000")
		rig.WaitUntil(t, "both have told", func() bool { return len(sortLines(s.RunBerth(t, "logs", "one").Out)) == 2 })
		got := s.runGang(t, "-n", "2", "--network", "host", rig.ImagePath(t, "busybox"), "sh", "-c", "echo $MASTER_PORT")
		if first := sortLines(s.RunBerth(t, "logs", "one").Out); slices.Equal(first, sortLines(got.Out)) || len(sortLines(got.Out)) != 2 {
			t.Errorf("%q and %+v", first, got)
		}
		s.RunBerth(t, "rm", "-f", "one")
	})
}

// TestGangJSON: what programs read of a gang.
func TestGangJSON(t *testing.T) {
	s := startApart(t, "v2", "crun")
	s.detach(t, "--name", "g", "-n", "2", rig.ImagePath(t, "busybox"), "sleep", "1000")
	var all []struct {
		Name   string
		Gang   *struct{ Ranks, Names []string }
		Member *struct {
			Gang, Role  string
			Index, Rank int
		}
	}
	rig.Must(t, json.Unmarshal([]byte(s.RunBerth(t, "ps", "--json").Out), &all))
	if len(all) != 3 || all[0].Gang == nil || len(all[0].Gang.Ranks) != 2 || all[2].Member == nil || all[2].Member.Rank != 1 {
		t.Errorf("%+v", all)
	}
}
