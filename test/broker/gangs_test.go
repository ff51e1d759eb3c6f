package broker

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// sorted returns lines in order: ranks write theirs at the same time.
func sorted(text string) string {
	lines := slices.Sorted(strings.Lines(text))
	return strings.Join(lines, "")
}

// sortOutput sorts the lines of standard output: ranks print in any order.
func sortOutput(said rig.Said) rig.Said {
	said.Out = sorted(said.Out)
	return said
}

// makeNodes makes device nodes of all GPUs in a directory of the user's, as no container has them, and returns it.
func (h home) makeNodes() string {
	h.t.Helper()
	dir := filepath.Join(h.dir, "nodes")
	rig.Must(h.t, os.Mkdir(dir, 0o755))
	for i := range 8 {
		h.Do(h.t, "mknod", "-m", "666", filepath.Join(dir, fmt.Sprint("nvidia", i)), "c", "195", fmt.Sprint(i))
	}
	return dir
}

// openingAt is a shell script that prints the numbers of the GPUs whose nodes in a directory the device guard lets it open, and '.' for each
// that it doesn't.
const openingAt = `for i in 0 1 2 3 4 5 6 7; do
	case $( (: </nodes/nvidia$i) 2>&1) in *"No such device or address"*) printf %s $i;; *"not permitted"*) printf .;; *) printf '?';; esac
done; echo`

// TestGangOfUser: a user's gang has one lease, its ranks share namespaces and find each other, each sees its GPUs and opens none outside
// of the lease, and files that they write belong to the user. It ends as its first rank that fails.
func TestGangOfUser(t *testing.T) {
	n := start(t)
	n.broker()
	h := n.home(alice)
	busybox, nodes := rig.ImagePath(t, "busybox"), h.makeNodes()
	n.start(bob, n.Berth, "alloc", "device=0", "--", "sleep", "1000")
	n.waitForLeases(1)
	for _, ids := range []string{"one id", "subordinate ids"} {
		if ids == "subordinate ids" {
			h.giveSubordinateIDs()
		}
		for _, runtime := range []string{"crun", "runc"} {
			t.Run(ids+" "+runtime, func(t *testing.T) {
				gang := func(words ...string) rig.Said {
					t.Helper()
					return sortOutput(h.berth(append([]string{"run", "-n", "3", "--runtime", runtime}, words...)...))
				}
				n.wantSaid("GPUs of the gang", gang("--gpus-per-rank", "1", busybox, "sh", "-c", opening),
					rig.Said{Out: "rank-0 | ?123????\nrank-1 | ?123????\nrank-2 | ?123????\n"})
				n.wantSaid("GPUs of the ranks", gang("--gpus-per-rank", "1", "--bind-gpus", "rank", busybox, "sh", "-c", inOneWrite(opening)),
					rig.Said{Out: "rank-0 | ?1??????\nrank-1 | ??2?????\nrank-2 | ???3????\n"})
				n.wantSaid("the guard", gang("--gpus-per-rank", "1", "-v", nodes+":/nodes", busybox, "sh", "-c", openingAt),
					rig.Said{Out: "rank-0 | .123....\nrank-1 | .123....\nrank-2 | .123....\n"})
				n.wantSaid("the guard without devices", gang("-v", nodes+":/nodes", busybox, "sh", "-c", openingAt),
					rig.Said{Out: "rank-0 | ........\nrank-1 | ........\nrank-2 | ........\n"})
				n.wantSaid("namespaces", gang("-v", h.dir+":/home", busybox, "sh", "-c", `for n in pid ipc uts net; do readlink /proc/self/ns/$n; done >/home/$RANK
					echo $RANK >/dev/shm/$RANK; until [ -s /dev/shm/0 -a -s /dev/shm/1 -a -s /dev/shm/2 ]; do sleep 0.1; done; id -u`),
					rig.Said{Out: "rank-0 | 0\nrank-1 | 0\nrank-2 | 0\n"})
				first := ""
				for rank := range 3 {
					name := filepath.Join(h.dir, fmt.Sprint(rank))
					links, err := os.ReadFile(name)
					rig.Must(t, err)
					if first == "" {
						first = string(links)
					}
					fi, err := os.Stat(name)
					rig.Must(t, err)
					if string(links) != first || fi.Sys().(*syscall.Stat_t).Uid != alice {
						t.Errorf("rank %d, of user %d, is in %s, and another in %s", rank, fi.Sys().(*syscall.Stat_t).Uid, links, first)
					}
				}
				if net, err := os.Readlink("/proc/self/ns/net"); err != nil || !strings.HasSuffix(first, "\n"+net+"\n") {
					t.Errorf("the network is not the host's %s: %s, %v", net, first, err)
				}
				got := gang("--gpus-per-rank", "1", busybox, "sh", "-c", "[ $RANK = 1 ] && exit 7; sleep 1000")
				if got.Code != 7 || !strings.HasSuffix(got.Err, ": rank-1 failed first\n") {
					t.Errorf("a rank fails: %+v", got)
				}
			})
		}
	}
	n.wantSaid("another user of the image", rig.Said{Out: sorted(h.berth("run", "-n", "2", "--gpus-per-rank", "1", "--bind-gpus", "rank", "--user", "1000", busybox, "sh", "-c", "id -u; (: <$(echo /dev/nvidia?)) 2>&1 | sed 's/.*: //'").Out)},
		rig.Said{Out: "rank-0 | 1000\nrank-0 | No such device or address\nrank-1 | 1000\nrank-1 | No such device or address\n"})
	n.Do(t, n.Berth, "release", "--force", n.waitForLeases(1)[0].ID)
	h.wantClean()
}

// TestManyRanksOfUser: the ranks' pipes fit into the memory that the kernel allows a user for pipes.
func TestManyRanksOfUser(t *testing.T) {
	n := start(t)
	n.broker()
	h := n.home(alice)
	n.wantSaid("40 ranks", h.berth("run", "-n", "40", rig.ImagePath(t, "busybox"), "true"), rig.Said{})
	h.wantClean()
}

// TestGangNetworkOfUser: the host's network is that of a user's gang; with none the ranks have lo to themselves, with the variables and
// the store of Horovod. Networks that change the host are refused.
func TestGangNetworkOfUser(t *testing.T) {
	n := start(t)
	n.broker()
	h := n.home(alice)
	busybox := rig.ImagePath(t, "busybox")
	const variables = `echo ${NCCL_SOCKET_IFNAME-unset} ${GLOO_SOCKET_IFNAME-unset} ${HOROVOD_GLOO_RENDEZVOUS_ADDR-unset} $MASTER_ADDR; `
	const connect = `if [ $RANK = 0 ]; then echo hello | nc -l -p $MASTER_PORT; else until sleep 1 | nc $MASTER_ADDR $MASTER_PORT; do :; done 2>/dev/null; fi; `
	said := h.berth("run", "-n", "2", busybox, "sh", "-c", variables+connect)
	n.wantSaid("the host's", sortOutput(said), rig.Said{Out: "rank-0 | unset unset unset rank-0\nrank-1 | hello\nrank-1 | unset unset unset rank-0\n"})
	const store = `printf "PUT /s/$RANK HTTP/1.0\r\nContent-Length: 1\r\n\r\n$RANK" | nc 127.0.0.1 $HOROVOD_GLOO_RENDEZVOUS_PORT | head -n1 | tr -d '\r'; `
	for _, ids := range []string{"one id", "subordinate ids"} {
		if ids != "one id" {
			h.giveSubordinateIDs()
		}
		// The simulated node's /sys can't be mounted anew, for which runc has no way out.
		said := h.berth("run", "-n", "2", "--network", "none", "--runtime", "crun", "--gpus-per-rank", "1", busybox, "sh", "-c", variables+connect+store+"grep -c : /proc/net/dev")
		n.wantSaid("none, "+ids, sortOutput(said), rig.Said{Out: "rank-0 | 1\nrank-0 | =lo lo rank-0 rank-0\nrank-0 | HTTP/1.0 200 OK\n" +
			"rank-1 | 1\nrank-1 | =lo lo rank-0 rank-0\nrank-1 | HTTP/1.0 200 OK\nrank-1 | hello\n"})
	}
	if got := h.berth("run", "-d", "-n", "2", "--name", "job", "--network", "none", "--runtime", "crun", busybox, "sleep", "1000"); got.Code != 0 {
		t.Fatalf("%+v", got)
	}
	h.killMonitor("job")
	n.wantSaid("the store after the monitor was killed", h.berth("exec", "job.rank-1", "sh", "-c", store), rig.Said{Out: "HTTP/1.0 200 OK\n"})
	n.wantSaid("rm", h.berth("rm", "-f", "job"), rig.Said{Out: "job\n"})
	for _, network := range []string{"private", "rdma"} {
		n.wantSaid(network, h.berth("run", "-n", "2", "--network", network, "--gpus-per-rank", "1", busybox, "true"), rig.Said{
			Code: 125, Err: "berth: --network " + network + " needs root, for it changes interfaces and rules of the host: without root there are host, where ports are shared with everybody, and none, where the ranks have lo to themselves\n",
		})
	}
	h.wantClean()
}

// TestGangVerbsOfUser: every verb takes a user's gang, and each of its ranks, also when its monitor was killed.
func TestGangVerbsOfUser(t *testing.T) {
	n := start(t)
	n.broker()
	h := n.home(alice)
	busybox := rig.ImagePath(t, "busybox")
	file := filepath.Join(h.dir, "gang.toml")
	const gang = `name = "job"
image = "IMAGE"
[[role]]
name = "learn"
replicas = 2
gpus = "2"
command = ["sh", "-c", "trap 'echo asked; exit 3' TERM; echo begins; while :; do sleep 0.1; done"]
[[role]]
name = "feed"
command = ["sh", "-c", "trap 'exit 3' TERM; echo begins; while :; do sleep 0.1; done"]
`
	write := func(image, user string) {
		rig.Must(t, os.WriteFile(file, []byte(strings.NewReplacer("IMAGE", image, "[[role]]", "[[role]]\nuser = \""+user+"\"").Replace(gang)), 0o644))
	}
	write(busybox, "0")
	for _, c := range []struct {
		killed bool
		user   string
	}{{}, {killed: true}, {user: "1000"}, {killed: true, user: "1000"}} {
		killed := c.killed
		if c.user != "" {
			write(busybox, c.user)
			h.giveSubordinateIDs()
		}
		if got := h.berth("run", "-d", "--gang", file); got.Code != 0 {
			t.Fatalf("%+v", got)
		}
		rig.WaitUntil(t, "the ranks run", func() bool { return strings.Count(h.berth("logs", "job").Out, "begins") == 3 })
		if killed {
			h.killMonitor("job")
		}
		if l := n.waitForLeases(1)[0]; len(l.Devices) != 4 {
			t.Errorf("the lease: %+v", l)
		}
		n.wantSaid("ps", h.berth("ps", "--format", "{{.Names}} {{.GPUs}} {{.State}}"),
			rig.Said{Out: "job 0,1,2,3 running\njob.learn-0 0,1 running\njob.learn-1 2,3 running\njob.feed-0  running\n"})
		n.wantSaid("exec", h.berth("exec", "job.learn-1", "sh", "-c", "echo $BERTH_RANK_GPUS; (: </dev/nvidia2) 2>&1 | sed 's/.*: //'; exit 5"), rig.Said{Out: "2,3\nNo such device or address\n", Code: 5})
		n.wantSaid("logs of a rank", h.berth("logs", "job.feed-0"), rig.Said{Out: "begins\n"})
		n.wantSaid("inspect", h.berth("inspect", "-f", "{{.State.Status}} {{len .task.gang.ranks}}", "job"), rig.Said{Out: "running 3\n"})
		if got := h.berth("stats", "--no-stream", "--format", "{{.Name}}", "job"); sorted(got.Out) != "job.feed-0\njob.learn-0\njob.learn-1\n" {
			t.Errorf("stats: %+v", got)
		}
		follows := n.start(alice, h.words("logs", "-f", "job.learn-0")...)
		n.wantSaid("stop", h.berth("stop", "job"), rig.Said{Out: "job\n"})
		if code := follows.Wait(t); code != 0 {
			t.Errorf("logs -f: exit code %d", code)
		}
		if got := h.berth("wait", "job"); got.Out != "3\n" && (!killed || got.Out != "255\n") { // the next monitor may not see how it has ended
			t.Errorf("wait: %+v", got)
		}
		if got := h.berth("logs", "job.learn-0").Out; got != "begins\nasked\n" {
			t.Errorf("the rank was not asked to end: %q", got)
		}
		n.wantSaid("rm", h.berth("rm", "job"), rig.Said{Out: "job\n"})
		h.wantClean()
	}
	for _, words := range [][]string{{"kill", "job"}, {"kill", "job.feed-0"}, {"rm", "-f", "job"}} {
		if got := h.berth("run", "-d", "--gang", file); got.Code != 0 {
			t.Fatalf("%+v", got)
		}
		if got := h.berth(words...); got.Code != 0 {
			t.Errorf("%v: %+v", words, got)
		}
		if words[0] == "kill" {
			if got := h.berth("wait", "job"); got.Out != "137\n" {
				t.Errorf("%v: %+v", words, got)
			}
			n.wantSaid("rm", h.berth("rm", "job"), rig.Said{Out: "job\n"})
		}
		h.wantClean()
	}
}

// TestGangLifeOfUser: --timeout and --restart, signals to berth run, and a gang in the lease of a berth alloc.
func TestGangLifeOfUser(t *testing.T) {
	n := start(t)
	n.broker()
	h := n.home(alice)
	busybox := rig.ImagePath(t, "busybox")
	said := h.berth("run", "-n", "2", "--timeout", "1s", "--gpus-per-rank", "1", busybox, "sleep", "1000")
	if said.Code != 143 && said.Code != 137 || !strings.Contains(said.Err, "its time of 1s was over") {
		t.Errorf("timeout: %+v", said)
	}
	count := filepath.Join(h.dir, "count")
	if got := h.berth("run", "-d", "-n", "2", "--name", "again", "--restart", "on-failure:2", "--gpus-per-rank", "1", "-v", h.dir+":/home", busybox, "sh", "-c",
		"[ $RANK = 1 ] && exec sleep 1000; echo >>/home/count; exit 4"); got.Code != 0 {
		t.Fatalf("%+v", got)
	}
	n.wantSaid("wait", h.berth("wait", "again"), rig.Said{Out: "4\n"})
	if lives, err := os.ReadFile(count); err != nil || string(lives) != "\n\n\n" {
		t.Errorf("lives: %q, %v", lives, err)
	}
	n.wantSaid("rm", h.berth("rm", "again"), rig.Said{Out: "again\n"})
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		p := n.start(alice, h.words("run", "-n", "2", "--gpus-per-rank", "1", "-v", h.dir+":/home", busybox, "sh", "-c", "trap 'exit 6' INT TERM; touch /home/up-$RANK; while :; do sleep 0.1; done")...)
		h.waitForRanks(2)
		rig.Must(t, p.Cmd.Process.Signal(sig))
		if code := p.Wait(t); code != 6 {
			t.Errorf("%v: exit code %d", sig, code)
		}
	}
	// Without the controller cpuset, as here, the ranks' processes are kept on the CPUs.
	said = h.berth("run", "-n", "2", "--cpuset-cpus", "1", "--gpus-per-rank", "1", busybox, "sh", "-c", "grep Cpus_allowed_list /proc/self/status | cut -f2")
	n.wantSaid("CPUs", sortOutput(said), rig.Said{Out: "rank-0 | 1\nrank-1 | 1\n"})
	n.start(0, n.Berth, "alloc", "1", "--", "sleep", "1000")
	held := n.waitForLeases(1)[0].ID
	n.wantSaid("busy", rig.Said{Code: h.berth("run", "-n", "2", "--gpus-per-rank", "4", busybox, "true").Code}, rig.Said{Code: 75})
	n.wantSaid("queued", rig.Said{Code: h.berth("run", "-d", "-n", "2", "--name", "next", "--wait=1m", "--gpus-per-rank", "4", busybox, "true").Code}, rig.Said{})
	waits := n.start(alice, h.words("run", "-n", "2", "--wait=1m", "--gpus-per-rank", "4", busybox, "true")...)
	n.waitForQueue(2)
	n.Do(t, n.Berth, "release", "--force", held)
	n.wantSaid("wait", h.berth("wait", "next"), rig.Said{Out: "0\n"})
	if code := waits.Wait(t); code != 0 {
		t.Errorf("the gang that waited: exit code %d", code)
	}
	n.wantSaid("rm", h.berth("rm", "next"), rig.Said{Out: "next\n"})
	alloc := func(words ...string) rig.Said {
		got := n.run(alice, append([]string{n.Berth, "alloc", "device=5,6", "--"}, h.words(words...)...)...)
		got.Out, got.Err = sorted(got.Out), regexp.MustCompile("[0-9a-f]{12}").ReplaceAllString(got.Err, "LEASE")
		return got
	}
	n.wantSaid("in a lease", alloc("run", "-n", "2", "--gpus-per-rank", "1", "--bind-gpus", "rank", busybox, "sh", "-c", inOneWrite(opening)), rig.Said{Out: "rank-0 | ?????5??\nrank-1 | ??????6?\n"})
	roots := n.Run(t, n.Command(n.Berth, "alloc", "device=5,6", "--", n.Berth, "run", "-n", "2", "--gpus-per-rank", "1", "--bind-gpus", "rank", busybox, "sh", "-c", inOneWrite(opening)))
	n.wantSaid("root's in a lease", sortOutput(roots), rig.Said{Out: "rank-0 | ?????5??\nrank-1 | ??????6?\n"})
	n.wantSaid("more than the lease", alloc("run", "-n", "3", "--gpus-per-rank", "1", busybox, "true"), rig.Said{
		Code: 125, Err: "berth: request 1;1;1: the lease LEASE around this process has only GPU 5,6\n",
	})
	n.wantSaid("detached in a lease", alloc("run", "-d", "-n", "2", "--gpus-per-rank", "1", busybox, "true"), rig.Said{
		Code: 125, Err: "berth: a detached task would outlive the lease LEASE of the berth alloc around this process; unset BERTH_LEASE to take one of its own\n",
	})
	h.wantClean()
}

// waitForRanks waits until the ranks have made their files up-RANK, and removes these.
func (h home) waitForRanks(count int) {
	h.t.Helper()
	for rank := range count {
		name := filepath.Join(h.dir, "up-"+strconv.Itoa(rank))
		rig.WaitUntil(h.t, "the ranks run", func() bool { return os.Remove(name) == nil })
	}
}

// TestKilledGangOfUser: whichever process of a user's gang is killed, the gang ends, and nothing of it is left.
func TestKilledGangOfUser(t *testing.T) {
	n := start(t)
	h := n.home(alice)
	busybox := rig.ImagePath(t, "busybox")
	for _, victim := range []string{"berth", "berth in the namespace", "monitor", "holder", "rank", "broker"} {
		for _, detached := range []bool{false, true} {
			if detached && strings.HasPrefix(victim, "berth") {
				continue
			}
			name := fmt.Sprintf("%s, detached %v", victim, detached)
			broker := n.broker()
			words := []string{"run", "-n", "2", "--name", "job", "--gpus-per-rank", "4", "-v", h.dir + ":/home", busybox, "sh", "-c", "touch /home/up-$RANK; sleep 1000"}
			if detached {
				words = slices.Insert(words, 1, "-d")
			}
			p := n.start(alice, h.words(words...)...)
			t.Cleanup(func() { h.berth("rm", "-f", "job") })
			h.waitForRanks(2)
			rig.WaitUntil(t, "the task is recorded", func() bool { return strings.Count(h.berth("ps", "--format", "{{.State}}").Out, "running") == 3 })
			var pid int
			pattern := map[string]string{"holder": "^@catatonit", "rank": "^sleep 1000", "monitor": "^berth-monitor --data " + h.dir}[victim]
			switch victim {
			case "berth":
				pid = p.Cmd.Process.Pid
			case "berth in the namespace":
				pid = listChildren(p.Cmd.Process.Pid)[0]
			case "broker":
				pid = broker.Cmd.Process.Pid
			default:
				pids := findProcesses(broker.Cmd.Process.Pid, alice, pattern)
				if pids == nil {
					t.Fatalf("there is no process %s", pattern)
				}
				pid = pids[0]
			}
			rig.Must(t, syscall.Kill(pid, syscall.SIGKILL))
			if victim == "broker" {
				broker.Wait(t)
				broker = n.broker()
				n.waitForLeases(1)
			}
			if victim == "broker" || victim == "monitor" { // the gang goes on, with the next one
				n.wantSaid(name+": stop", h.berth("stop", "-t", "0", "job"), rig.Said{Out: "job\n"})
			}
			code := p.Wait(t)
			if want := map[string]int{"holder": 137, "rank": 137}[victim]; !detached && want != 0 && code != want {
				t.Errorf("%s: exit code %d, want %d", name, code, want)
			}
			rig.WaitUntil(t, name+": the ranks have ended", func() bool { return h.berth("ps", "-q").Out == "" })
			if detached {
				n.wantSaid(name+": rm", h.berth("rm", "job"), rig.Said{Out: "job\n"})
			}
			if got := h.berth("run", "-n", "2", "--wait=1m", "--gpus-per-rank", "4", busybox, "true"); got.Code != 0 {
				t.Errorf("%s: all GPUs are free again: %+v", name, got)
			}
			h.wantClean()
			for _, left := range []string{"^@catatonit", "^sleep 1000", "^berth-monitor --data " + h.dir} {
				if pids := findProcesses(broker.Cmd.Process.Pid, alice, left); pids != nil {
					t.Errorf("%s: processes %s are left: %v", name, left, pids)
				}
			}
			rig.Must(t, broker.Cmd.Process.Signal(syscall.SIGTERM))
			broker.Wait(t)
		}
	}
}

// listChildren returns the children of a process.
func listChildren(pid int) (children []int) {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid)) // the pattern is right
	for _, file := range threads {
		list, _ := os.ReadFile(file) // the process may have ended
		for word := range strings.FieldsSeq(string(list)) {
			if child, err := strconv.Atoi(word); err == nil {
				children = append(children, child)
			}
		}
	}
	return children
}

// findProcesses returns the processes of a user in the cgroup tree of another process's node whose command lines match, the oldest first.
func findProcesses(onNode, uid int, pattern string) (pids []int) {
	own, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", onNode)) // without it none is found
	tree := regexp.MustCompile(`(?m)^0::/[^/\n]+`).FindString(string(own))
	dirs, _ := filepath.Glob("/proc/[0-9]*") // the pattern is right
	for _, dir := range dirs {
		fi, err := os.Stat(dir)
		group, _ := os.ReadFile(dir + "/cgroup") // it may have ended
		data, e := os.ReadFile(dir + "/cmdline")
		if err != nil || e != nil || int(fi.Sys().(*syscall.Stat_t).Uid) != uid || tree == "" || !strings.Contains(string(group), tree) || !regexp.MustCompile(pattern).MatchString(strings.ReplaceAll(string(data), "\x00", " ")) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// TestGangOfUserForRoot: root's berth ps shows a user's gang as one, and says how it ends, also by the id of a rank.
func TestGangOfUserForRoot(t *testing.T) {
	n := start(t)
	n.broker()
	h := n.home(alice)
	said := h.berth("run", "-d", "-n", "2", "--gpus-per-rank", "2", "--name", "train", rig.ImagePath(t, "busybox"), "sleep", "1000")
	if said.Code != 0 {
		t.Fatalf("%+v", said)
	}
	t.Cleanup(func() { h.berth("rm", "-f", "train") })
	id := strings.TrimSpace(said.Out)
	n.wantSaid("ps", n.Run(t, n.Command(n.Berth, "ps", "--format", "{{.ID}} {{.Names}} {{.User}} {{.GPUs}} {{.State}} {{.Command}}")), rig.Said{Out: id + " train 4711 0,1,2,3 running gang of 2\n"})
	lease := n.waitForLeases(1)[0].ID
	refused := rig.Said{Code: 1, Err: "berth: task " + id + ": it is a task of user 4711, who alone has its record; berth release " + lease + " ends its lease with all processes\n"}
	n.wantSaid("stop", n.Run(t, n.Command(n.Berth, "stop", id)), refused)
	rank := strings.TrimSpace(h.berth("inspect", "-f", "{{.Id}}", "train.rank-1").Out)
	n.wantSaid("stop of a rank", n.Run(t, n.Command(n.Berth, "stop", rank)), refused)
	n.Do(t, n.Berth, "release", "--force", id)
	rig.WaitUntil(t, "the gang has ended", func() bool { return h.berth("ps", "-q").Out == "" })
	n.wantSaid("rm", h.berth("rm", "-f", "train"), rig.Said{Out: "train\n"})
	h.wantClean()
}

// inOneWrite is a script that prints the output of another one at once: on a slow machine berth shows the beginning of a rank's line without its rest.
func inOneWrite(script string) string { return "all=$(" + script + `); echo "$all"` }
