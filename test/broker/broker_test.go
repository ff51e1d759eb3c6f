// Package broker holds black-box tests of berth-broker, with real users, on nodes with cgroup version 2
// and the device guard.
package broker

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/test/rig"
)

var shared *rig.Rig

func TestMain(m *testing.M) {
	rig.Main(m, func(r *rig.Rig) error {
		shared = r
		return os.Chmod(r.Dir, 0o755) // users run the programs too
	})
}

// node is a simulated server with eight GPUs, the device guard, and a broker.
type node struct {
	*rig.Node
	t *testing.T
}

// alice is a user without a name, bob one with a name.
const (
	alice = 4711
	bob   = 1 // daemon
)

func start(t *testing.T) node {
	t.Helper()
	n := node{shared.Once(t, "rooted", func() (*rig.Node, error) { return shared.StartRooted("dgx-h100") }), t}
	n.Do(t, n.Berth, "guard", "on")
	t.Cleanup(func() { n.Do(t, n.Berth, "guard", "off") })
	n.Do(t, n.Berth, "alloc", "--wait=1m", "8", "--", "true") // what earlier tests have killed may still be ending
	return n
}

// confined returns the words that run a command with the capabilities of the systemd unit.
func confined(t *testing.T, words ...string) []string {
	t.Helper()
	unit, err := os.ReadFile("../../packaging/systemd/berth-broker.service")
	rig.Must(t, err)
	set := "-all"
	for line := range strings.Lines(string(unit)) {
		if list, ok := strings.CutPrefix(line, "CapabilityBoundingSet="); ok {
			for _, name := range strings.Fields(list) {
				set += ",+" + strings.ToLower(strings.TrimPrefix(name, "CAP_"))
			}
		}
	}
	return append([]string{"setpriv", "--no-new-privs", "--inh-caps=-all", "--bounding-set=" + set}, words...)
}

// broker starts a broker with the capabilities of its unit, and waits until it listens.
func (n node) broker() rig.Process {
	n.t.Helper()
	words := confined(n.t, filepath.Dir(n.Berth)+"/berth-broker")
	p := rig.StartProcess(n.t, n.Command(words[0], words[1:]...))
	rig.WaitUntil(n.t, "the broker listens", n.listens)
	return p
}

// listens reports whether a broker listens.
func (n node) listens() bool {
	conn, err := n.dial()
	if err == nil {
		_ = conn.Close()
	}
	return err == nil
}

func (n node) dial() (net.Conn, error) { return net.Dial("unix", n.Path("/run/berth/broker.sock")) }

// as returns the words of a command line that a user runs.
func as(uid int, words ...string) []string {
	id := strconv.Itoa(uid)
	return append([]string{"setpriv", "--reuid", id, "--regid", id, "--clear-groups"}, words...)
}

func (n node) run(uid int, words ...string) rig.Said {
	n.t.Helper()
	words = as(uid, words...)
	return n.Run(n.t, n.Command(words[0], words[1:]...))
}

// start starts a command of a user in the background.
func (n node) start(uid int, words ...string) rig.Process {
	n.t.Helper()
	words = as(uid, words...)
	return rig.StartProcess(n.t, n.Command(words[0], words[1:]...))
}

func (n node) wantSaid(what string, got rig.Said, want rig.Said) {
	n.t.Helper()
	if got != want {
		n.t.Errorf("%s: %+v, want %+v", what, got, want)
	}
}

// waitForLeases waits until so many leases are held, and returns them.
func (n node) waitForLeases(count int) (leases []rig.Lease) {
	n.t.Helper()
	rig.WaitUntil(n.t, fmt.Sprint(count, " leases"), func() bool {
		leases = slices.DeleteFunc(n.Leases(n.t), func(l rig.Lease) bool { return !l.Live })
		return len(leases) == count
	})
	return leases
}

// waitForQueue waits until so many requests wait.
func (n node) waitForQueue(count int) {
	n.t.Helper()
	rig.WaitUntil(n.t, fmt.Sprint(count, " waiting requests"), func() bool {
		var view struct {
			Line []any `json:"line"`
		}
		rig.Decode(n.t, n.Do(n.t, n.Berth, "leases", "--json"), &view)
		return len(view.Line) == count
	})
}

// opening is a shell script that prints the numbers of the GPUs whose nodes it can open. The
// simulated nodes have no driver: an open that the kernel allows gives ENXIO, and not EPERM.
const opening = `for i in 0 1 2 3 4 5 6 7; do
	case $( (: </dev/nvidia$i) 2>&1) in *"No such device or address"*) printf %s $i;; *"ermitted"*) ;; *) printf '?';; esac
done; echo`

// TestUsersOpenTheirLease: with the guard, a user's command opens the devices of its lease, and nothing
// before or afterwards.
func TestUsersOpenTheirLease(t *testing.T) {
	n := start(t)
	n.broker()
	n.wantSaid("before", n.run(alice, "sh", "-c", opening), rig.Said{Out: "\n"})
	n.wantSaid("with a lease", n.run(alice, n.Berth, "alloc", "2", "--", "sh", "-c", opening), rig.Said{Out: "01\n"})
	n.wantSaid("another user", n.run(bob, n.Berth, "alloc", "device=5", "sh", "-c", opening), rig.Said{Out: "5\n"})
	n.wantSaid("a lease in a lease", n.run(alice, n.Berth, "alloc", "2", "--", n.Berth, "alloc", "1", "--", "sh", "-c", opening), rig.Said{Out: "2\n"})
	n.wantSaid("a lease in root's", n.Run(t, n.Command(n.Berth, append([]string{"alloc", "3", "--"}, as(alice, n.Berth, "alloc", "1", "--", "sh", "-c", opening)...)...)), rig.Said{Out: "3\n"})
	n.wantSaid("afterwards", n.run(alice, "sh", "-c", opening), rig.Said{Out: "\n"})
	n.waitForLeases(0)
	if got := n.Do(t, "sh", "-c", "find /sys/fs/cgroup/berth -name 'alloc-*'"); got != "" {
		t.Errorf("left over: %s", got)
	}
}

// TestAllocAsUser: berth alloc has the environment, the exit codes and the messages that root's has.
func TestAllocAsUser(t *testing.T) {
	n := start(t)
	n.broker()
	for _, c := range []struct {
		name  string
		words []string
		want  rig.Said
	}{
		{"exit code", []string{"alloc", "1", "--", "sh", "-c", "exit 7"}, rig.Said{Code: 7}},
		{"signal", []string{"alloc", "1", "--", "sh", "-c", "kill -TERM $$"}, rig.Said{Code: 143}},
		{"user", []string{"alloc", "1", "--", "id", "-u"}, rig.Said{Out: "4711\n"}},
		{"too many", []string{"alloc", "9", "--", "true"}, rig.Said{Code: 125, Err: "berth: request 9: node has 8 GPUs, 9 asked; berth gpus lists the node's devices\n"}},
		{"no such device", []string{"alloc", "device=12", "--", "true"}, rig.Said{Code: 125}},
		{"policy", []string{"alloc", "1,+gds", "--", "true"}, rig.Said{Code: 125, Err: "berth: request 1,+gds: feature gds: not allowed on this node: policy.features lists none\n"}},
	} {
		got := n.run(alice, append([]string{n.Berth}, c.words...)...)
		if c.want.Err == "" && c.want.Code == 125 {
			c.want.Err = n.RunBerth(t, c.words...).Err // as root's
		}
		n.wantSaid(c.name, got, c.want)
	}
	got := n.run(alice, "env", "CUDA_VISIBLE_DEVICES=outer", n.Berth, "alloc", "3", "--", "sh", "-c", "env | grep -c CUDA_VISIBLE; echo $CUDA_VISIBLE_DEVICES; echo $BERTH_DEVICES")
	if lines := strings.Fields(got.Out); len(lines) != 3 || lines[0] != "1" || lines[1] != lines[2] || strings.Count(lines[1], "GPU-") != 3 {
		t.Errorf("%+v", got)
	}
	got = n.run(alice, n.Berth, "alloc", "1", "--", "sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!")
	if want := "berth: the command left 1 process running; GPU 0 stays leased until the last has ended\n"; got.Code != 0 || got.Err != want {
		t.Errorf("%+v, want %s", got, want)
	}
	id := n.waitForLeases(1)[0].ID
	n.wantSaid("release", n.run(alice, n.Berth, "release", "--force", id), rig.Said{Out: "released " + id + ": GPU 0\n"})
	n.waitForLeases(0)
	if got := n.Do(t, "sh", "-c", "find /sys/fs/cgroup/berth -name 'alloc-*'"); got != "" {
		t.Errorf("left over: %s", got)
	}
}

// TestWithoutBroker: a user is told how to get one.
func TestWithoutBroker(t *testing.T) {
	n := start(t)
	n.Do(t, n.Berth, "alloc", "1", "--", "true") // there is a ledger
	const line = "berth: this needs root, and runs as user 4711: use sudo, or have the admin start the broker: systemctl enable --now berth-broker.socket\n"
	for _, words := range [][]string{{"alloc", "1", "--", "true"}, {"leases"}, {"gpus"}, {"release", "x"}} {
		got := n.run(alice, append([]string{n.Berth}, words...)...)
		if got.Code == 0 || got.Out != "" || got.Err != line {
			t.Errorf("%q: %+v", words, got)
		}
	}
}

// TestShared: two users and root share eight GPUs, and no GPU is leased twice.
func TestShared(t *testing.T) {
	n := start(t)
	n.broker()
	dir := t.TempDir()
	rig.Must(t, os.Chmod(filepath.Dir(dir), 0o755))
	rig.Must(t, os.Chmod(dir, 0o777))
	// Each command makes a directory for each GPU that it can open, which fails if another one has it.
	script := `opens() { ` + opening + `; }
		for i in $(opens | sed 's/./& /g'); do mkdir ` + dir + `/$i || exit 9; done
		sleep 0.05
		for i in $(opens | sed 's/./& /g'); do rmdir ` + dir + `/$i || exit 8; done`
	var all sync.WaitGroup
	for i := range 36 {
		words := []string{n.Berth, "alloc", "--wait=2m", strconv.Itoa(1 + i%3), "--", "sh", "-c", script}
		switch i % 3 {
		case 1:
			words = as(alice, words...)
		case 2:
			words = as(bob, words...)
		}
		all.Go(func() {
			if out, err := n.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	all.Wait()
	n.waitForLeases(0)
}

// TestKilledBroker: a broker that is killed costs no lease and no place in the queue.
func TestKilledBroker(t *testing.T) {
	n := start(t)
	first := n.broker()
	held := n.start(alice, n.Berth, "alloc", "all", "--", "sleep", "1000")
	before := n.waitForLeases(1)[0]
	waits := n.start(bob, n.Berth, "alloc", "--wait", "8", "--", "sleep", "1000")
	n.waitForQueue(1)
	behind := n.start(alice, n.Berth, "alloc", "--wait", "8", "--", "true")
	n.waitForQueue(2)
	queue := func() (ids []string) {
		var view struct {
			Line []struct{ ID string }
		}
		rig.Decode(t, n.Do(t, n.Berth, "leases", "--json"), &view)
		for _, w := range view.Line {
			ids = append(ids, w.ID)
		}
		return ids
	}
	order := queue()
	rig.Must(t, first.Cmd.Process.Kill())
	first.Wait(t)
	n.broker()
	if got := n.waitForLeases(1)[0]; got.ID != before.ID || held.HasEnded() {
		t.Errorf("lease %s was %s", got.ID, before.ID)
	}
	if got := queue(); !slices.Equal(got, order) {
		t.Errorf("the queue %v was %v", got, order)
	}
	n.wantSaid("release", n.run(alice, n.Berth, "release", "--force", before.ID), rig.Said{Out: "released " + before.ID + ": GPU 0,1,2,3,4,5,6,7\n"})
	rig.WaitUntil(t, "the first of the queue has the lease", func() bool {
		l := n.Leases(t)
		return len(l) == 1 && l[0].ID != before.ID && l[0].Live
	})
	if waits.HasEnded() || behind.HasEnded() {
		t.Error("a request that waited has ended")
	}
	n.Do(t, n.Berth, "release", "--force", n.waitForLeases(1)[0].ID)
	if code := behind.Wait(t); code != 0 {
		t.Errorf("the second of the queue: exit code %d", code)
	}
	n.waitForLeases(0)
}

// TestClientStaysAway: a request whose process lives, but doesn't ask the next broker, leaves the queue.
func TestClientStaysAway(t *testing.T) {
	n := start(t)
	first := n.broker()
	held := n.start(bob, n.Berth, "alloc", "all", "--", "sleep", "1000")
	n.waitForLeases(1)
	words := as(alice, "perl", "-e", connecting+`my $s = connection(); print $s qq({"version":1,"acquire":{"request":"8","wait_seconds":-1}}\n); <$s>; sleep 1000`)
	away := rig.StartProcess(t, n.Command(words[0], words[1:]...))
	n.waitForQueue(1)
	rig.Must(t, first.Cmd.Process.Kill())
	first.Wait(t)
	n.broker()
	behind := n.start(bob, n.Berth, "alloc", "--wait=1m", "1", "--", "true")
	n.waitForQueue(2)
	rig.Must(t, held.Cmd.Process.Signal(os.Interrupt))
	held.Wait(t)
	if code := behind.Wait(t); code != 0 {
		t.Errorf("a request behind it: exit code %d", code)
	}
	if away.HasEnded() {
		t.Error("the process that stays away has ended")
	}
	n.waitForQueue(0)
}

var (
	kills    = flag.Int("broker.kills", 30, "`brokers` that TestKilledAtRandom kills")
	killSeed = flag.Uint64("broker.seed", 1, "`seed` of what TestKilledAtRandom draws")
)

// TestKilledAtRandom: brokers that are killed at any moment fail no request that they have begun, open no
// device to a process without a lease, and leave no lease.
func TestKilledAtRandom(t *testing.T) {
	n := start(t)
	draw := rand.New(rand.NewPCG(*killSeed, 0))
	stop, done := make(chan bool), make(chan int)
	for range 3 {
		go func() {
			served := 0
			defer func() { done <- served }()
			for {
				select {
				case <-stop:
					return
				default:
				}
				words := as(alice, n.Berth, "alloc", "--wait=1m", "3", "--", "sh", "-c", opening)
				out, err := n.Command(words[0], words[1:]...).CombinedOutput()
				lines := strings.Split(strings.TrimSpace(string(out)), "\n")
				switch last := lines[len(lines)-1]; {
				case err != nil && strings.Contains(last, "have the admin start the broker"): // there was none at its start
				case err != nil || len(last) != 3:
					t.Errorf("%v: %s", err, out)
				default:
					served++
				}
			}
		}()
	}
	for range *kills {
		p := n.broker()
		time.Sleep(time.Duration(draw.IntN(150)) * time.Millisecond)
		_ = p.Cmd.Process.Kill() // it lives until then
		p.Wait(t)
		n.wantSaid("a user", n.run(bob, "sh", "-c", opening), rig.Said{Out: "\n"})
	}
	n.broker()
	close(stop)
	served := <-done + <-done + <-done
	n.wantSaid("all afterwards", n.run(bob, n.Berth, "alloc", "--wait=1m", "all", "--", "sh", "-c", opening), rig.Said{Out: "01234567\n"})
	n.wantSaid("a user afterwards", n.run(bob, "sh", "-c", opening), rig.Said{Out: "\n"})
	n.waitForLeases(0)
	t.Logf("%d requests were served", served)
}

// TestBrokerIsGone: a command runs on without a broker, its end needs none, and a request that waits ends.
func TestBrokerIsGone(t *testing.T) {
	n := start(t)
	b := n.broker()
	held := n.start(bob, n.Berth, "alloc", "all", "--", "sleep", "1000")
	n.waitForLeases(1)
	var said rig.Said
	done := make(chan bool)
	go func() {
		defer close(done)
		said = n.run(alice, n.Berth, "alloc", "--wait", "1", "--", "true")
	}()
	n.waitForQueue(1)
	rig.Must(t, b.Cmd.Process.Kill())
	b.Wait(t)
	if <-done; said.Code != 125 || !strings.Contains(said.Err, "have the admin start the broker") {
		t.Errorf("%+v", said)
	}
	n.waitForQueue(0)
	n.waitForLeases(1)
	rig.Must(t, held.Cmd.Process.Signal(os.Interrupt))
	if code := held.Wait(t); code != 130 {
		t.Errorf("exit code %d", code)
	}
	n.Do(t, n.Berth, "alloc", "all", "--", "true")
}

// TestShow: a user sees the own leases in full, and of others what policy.show says. Root sees users.
func TestShow(t *testing.T) {
	n := start(t)
	for show, want := range map[string][2]string{
		"all":   {"alloc sleep", "sleep 1000"},
		"users": {"alloc", ""},
		"none":  {"-", ""},
	} {
		t.Run(show, func(t *testing.T) {
			n := node{n.Node, t}
			conf := filepath.Join(n.Dir, "show-"+show+".toml")
			rig.Must(t, os.WriteFile(conf, fmt.Appendf(nil, "[policy]\nshow = %q\n", show), 0o644))
			rig.StartProcess(t, n.Command(filepath.Dir(n.Berth)+"/berth-broker", "--config", conf))
			rig.WaitUntil(t, "the broker answers", func() bool {
				conn, err := n.dial()
				if err == nil {
					_ = conn.Close()
				}
				return err == nil
			})
			n.start(bob, n.Berth, "alloc", "2", "--", "sleep", "1000")
			n.waitForLeases(1)
			n.start(alice, n.Berth, "alloc", "1", "--", "sleep", "2000")
			n.waitForLeases(2)
			var view struct {
				Leases []struct {
					ID    string
					Owner struct{ Name, Command, User string }
				}
			}
			rig.Decode(t, n.run(alice, n.Berth, "leases", "--json").Out, &view)
			if o := view.Leases[1].Owner; o.Command != "sleep 2000" || o.User != "4711" {
				t.Errorf("own: %+v", o)
			}
			if o := view.Leases[0].Owner; o.Command != want[1] || (o.User == "daemon") != (show != "none") {
				t.Errorf("bob's: %+v", o)
			}
			ages := strings.Fields(n.run(alice, n.Berth, "leases", "--format", "{{.For}}").Out)
			if len(ages) != 2 || (ages[0] == "-") != (show == "none") || ages[1] == "-" {
				t.Errorf("ages: %q", ages)
			}
			row := n.run(alice, n.Berth, "leases", "--format", "{{.Holder}}|{{.User}}|{{.GPU}}").Out
			user := map[bool]string{true: "-", false: "daemon"}[show == "none"]
			if w := want[0] + "|" + user + "|0,1\nalloc sleep|4711|2\n"; row != w {
				t.Errorf("%q, want %q", row, w)
			}
			gpus := n.run(alice, n.Berth, "gpus", "--format", "{{.GPU}} {{.State}} {{.User}}").Out
			if w := "0 leased " + user + "\n1 leased " + user + "\n2 leased 4711\n3 free -\n"; !strings.HasPrefix(gpus, w) {
				t.Errorf("%q, want %q", gpus, w)
			}
			if got := n.Do(t, n.Berth, "leases", "--format", "{{.Holder}} {{.User}}"); got != "alloc sleep daemon\nalloc sleep 4711\n" {
				t.Errorf("root sees %q", got)
			}
			busy := n.run(alice, n.Berth, "alloc", "8", "--", "true")
			if hides := !strings.Contains(busy.Err, "GPU 0,1 by alloc sleep"); busy.Code != 75 || hides == (show == "all") {
				t.Errorf("%+v", busy)
			}
			if strings.Contains(busy.Err, "0001") || show == "none" && !strings.Contains(busy.Err, "held: GPU 0,1 by others, GPU 2 by") {
				t.Errorf("%+v", busy)
			}
			for _, file := range []string{"/run/berth/ledger.json", "/run/berth/leases/" + view.Leases[1].ID + ".json", "/var/lib/berth/events.log"} {
				if n.run(alice, "cat", file).Code == 0 {
					t.Errorf("a user reads %s", file)
				}
			}
		})
		n.waitForLeases(0)
	}
}

// TestUpgrade: the package's script closes to users the files that older versions left readable for everybody.
func TestUpgrade(t *testing.T) {
	n := start(t)
	rig.StartProcess(t, n.Command(n.Berth, "alloc", "1", "--", "sleep", "1000"))
	n.waitForLeases(1)
	n.Do(t, "sh", "-c", "cd /run/berth && chmod 644 ledger.json leases/*.json /var/lib/berth/events.log")
	script, err := os.ReadFile("../../packaging/scripts/postinstall.sh")
	rig.Must(t, err)
	tools := t.TempDir() // without systemctl
	for _, name := range []string{"mkdir", "chmod"} {
		rig.Must(t, os.Symlink("/bin/"+name, filepath.Join(tools, name)))
	}
	n.Do(t, "env", "PATH="+tools, "/bin/sh", "-c", string(script), "postinstall", "configure", "1.0")
	got := n.Do(t, "sh", "-c", "cd /run/berth && stat -c %a ledger.json leases/*.json /var/lib/berth/events.log")
	if got != "600\n600\n640\n" {
		t.Errorf("the modes are %q", got)
	}
}

// ask sends a message and returns the reply's line.
func (n node) ask(message string) string {
	n.t.Helper()
	conn, err := n.dial()
	rig.Must(n.t, err)
	defer conn.Close()
	rig.Must(n.t, conn.SetDeadline(time.Now().Add(30*time.Second)))
	_, _ = conn.Write([]byte(message)) // the broker may have closed the connection
	line, _ := bufio.NewReader(conn).ReadString('\n')
	return line
}

// connecting is the beginning of a Perl program that speaks with the broker.
const connecting = `use IO::Socket::UNIX; $| = 1; my @held;
sub connection { my $s = IO::Socket::UNIX->new("/run/berth/broker.sock"); $s->autoflush(1) if $s; $s }
`

// TestForeignLease: a user ends no lease of others, whatever id is given.
func TestForeignLease(t *testing.T) {
	n := start(t)
	n.broker()
	n.start(bob, n.Berth, "alloc", "1", "--", "sleep", "1000")
	bobs := n.waitForLeases(1)[0].ID
	rig.StartProcess(t, n.Command(n.Berth, "alloc", "1", "--", "sleep", "1000"))
	n.waitForLeases(2)
	for _, l := range n.waitForLeases(2) {
		n.wantSaid("release", n.run(alice, n.Berth, "release", "--force", l.ID), rig.Said{
			Code: 1, Err: "berth: lease " + l.ID + " is not one that user 4711 has taken with berth alloc or berth adopt: only root can end it\n",
		})
	}
	for _, id := range []string{"../" + bobs, bobs + "\\n", "", "ffffffffffff"} {
		if got := n.ask(`{"version":1,"release":{"lease":"` + id + `","force":true}}` + "\n"); !strings.Contains(got, `"not_found"`) {
			t.Errorf("%q: %s", id, got)
		}
	}
	n.waitForLeases(2)
}

// TestMessages: messages that can't be read are refused on one line, and nothing that a message says
// makes its sender another user.
func TestMessages(t *testing.T) {
	n := start(t)
	n.broker()
	for name, c := range map[string][2]string{
		"no JSON":           {"GET / HTTP/1.1\r\n", "not a line of JSON"},
		"other version":     {`{"version":2,"adopt":{"pid":1}}` + "\n", "speaks version 1"},
		"forged user":       {`{"version":1,"acquire":{"request":"1","uid":0,"pid":1}}` + "\n", `unknown field \"uid\"`},
		"oversized":         {`{"version":1,"acquire":{"request":"` + strings.Repeat("1", 1<<20) + `"}}` + "\n", "more than 16384 bytes"},
		"without an end":    {strings.Repeat("x", 1<<15), "more than 16384 bytes"},
		"torn, and no more": {`{"version":1,"list":`, "no whole request came within 5s"},
		"two":               {`{"version":1,"release":{"lease":"x"}}` + "\n" + `{"version":1,"list":{}}` + "\n", "error"},
		"no request":        {`{"version":1,"acquire":{"request":"-3"}}` + "\n", `"message"`},
		"deep":              {`{"version":1,"acquire":` + strings.Repeat("[", 15000) + "\n", "not a line of JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			n := node{n.Node, t}
			got := n.ask(c[0])
			var reply struct {
				Error *struct{ Code, Message string }
			}
			if err := json.Unmarshal([]byte(got), &reply); err != nil || reply.Error == nil || !strings.Contains(got, c[1]) {
				t.Errorf("%q, want %s", got, c[1])
			}
		})
	}
	n.waitForLeases(0)
}

// TestConnections: a user with very many connections keeps no other user from being served.
func TestConnections(t *testing.T) {
	n := start(t)
	n.broker()
	script := connecting + `for (1..500) { my $s = connection() or next; push @held, $s }
print "open\n";
my $refused = 0;
for my $s (@held) {
	my $ready = ""; vec($ready, fileno($s), 1) = 1;
	next unless select($ready, undef, undef, 0.05);
	$refused++ if <$s> =~ /"limit"/;
}
print $refused > 400 ? "True\n" : "$refused\n";
sleep 1000`
	words := as(alice, "perl", "-e", script)
	cmd := n.Command(words[0], words[1:]...)
	_, said := rig.StartReading(t, cmd)
	line, _ := said.ReadString('\n')
	if line != "open\n" {
		t.Fatalf("%q", line)
	}
	n.wantSaid("another user meanwhile", n.run(bob, n.Berth, "alloc", "1", "--", "true"), rig.Said{})
	if line, _ = said.ReadString('\n'); line != "True\n" {
		t.Errorf("connections were refused: %q", line)
	}
}

// TestWaitingRequests: a user has a limit of waiting requests, and can still see and end leases.
func TestWaitingRequests(t *testing.T) {
	n := start(t)
	n.broker()
	n.start(bob, n.Berth, "alloc", "all", "--", "sleep", "1000")
	n.waitForLeases(1)
	script := connecting + `
for (1..40) {
	next if fork; # each process has one request
	my $s = connection();
	print $s qq({"version":1,"acquire":{"request":"1","wait_seconds":-1}}\n);
	my $l = <$s>;
	syswrite(STDOUT, $l =~ /"limit"/ ? "refused\n" : $l =~ /"waiting"/ ? "waits\n" : $l);
	while (<$s>) { last unless /"waiting"/ }
	exit;
}
wait for 1..40;`
	words := as(alice, "perl", "-e", script)
	cmd := n.Command(words[0], words[1:]...)
	_, said := rig.StartReading(t, cmd)
	count := map[string]int{}
	for range 40 {
		line, _ := said.ReadString('\n')
		count[strings.TrimSpace(line)]++
	}
	if count["waits"] != 32 || count["refused"] != 8 {
		t.Errorf("%v", count)
	}
	n.waitForQueue(32)
	if got := n.run(alice, n.Berth, "leases"); got.Code != 0 || strings.Count(got.Out, "waiting") != 32 {
		t.Errorf("%+v", got)
	}
	n.Do(t, n.Berth, "release", "--force", n.waitForLeases(1)[0].ID) // each gets the lease, and ends
	n.waitForQueue(0)
}

// TestSudo: a lease that root takes shows the user who called sudo or who logged in.
func TestSudo(t *testing.T) {
	n := start(t)
	n.broker()
	for _, c := range []struct {
		name, want string
		words      []string
	}{
		{"sudo", "daemon (sudo)", []string{"env", "SUDO_UID=1"}},
		{"a login session", "daemon (root)", []string{"sh", "-c", `echo 1 >/proc/self/loginuid || exit 9; exec "$@"`, "sh"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			words := append(c.words, n.Berth, "alloc", "device=4", "--", "sleep", "1000")
			holder := rig.StartProcess(t, n.Command(words[0], words[1:]...))
			lease := n.waitForLeases(1)[0]
			for _, uid := range []int{0, alice} {
				for _, verb := range []string{"leases", "gpus"} {
					if got := n.run(uid, n.Berth, verb); !strings.Contains(got.Out, c.want) {
						t.Errorf("user %d, %s: %+v, want %s", uid, verb, got, c.want)
					}
				}
				if got := n.run(uid, n.Berth, "alloc", "device=4", "--", "true"); !strings.Contains(got.Err, "of daemon since ") && uid == 0 || !strings.Contains(got.Err, "daemon") {
					t.Errorf("user %d: %+v", uid, got)
				}
			}
			n.Do(t, n.Berth, "release", "--force", lease.ID)
			holder.Wait(t)
			n.waitForLeases(0)
		})
	}
}

// TestNICLeases: a user can't fill the ledger with leases of NICs, which any number of leases share.
func TestNICLeases(t *testing.T) {
	n := start(t)
	n.broker()
	const most = 32
	for range most {
		n.start(alice, n.Berth, "alloc", "nics=1", "--", "sleep", "1000")
	}
	n.waitForLeases(most)
	n.wantSaid("one more", n.run(alice, n.Berth, "alloc", "nics=1", "--", "true"),
		rig.Said{Code: 125, Err: "berth: user 4711 has 32 leases without a GPU, the most that are allowed\n"})
	n.wantSaid("with a GPU", n.run(alice, n.Berth, "alloc", "1,nics=1", "--", "true"), rig.Said{})
	n.wantSaid("another user", n.run(bob, n.Berth, "alloc", "nics=1", "--", "true"), rig.Said{})
	long := "0" + strings.Repeat(" ", 2048)
	if got := n.ask(`{"version":1,"acquire":{"request":"` + long + `"}}` + "\n"); !strings.Contains(got, "the request has 2049 bytes, and a user's can have 2048") {
		t.Errorf("a long request: %s", got)
	}
}

// TestStoppedClient: a request whose process is stopped doesn't delay others, and gets no devices.
func TestStoppedClient(t *testing.T) {
	n := start(t)
	n.broker()
	held := n.start(bob, n.Berth, "alloc", "all", "--", "sleep", "1000")
	n.waitForLeases(1)
	stopped := n.start(alice, n.Berth, "alloc", "--wait", "8", "--", "true")
	n.waitForQueue(1)
	child := n.holdOf(stopped.Cmd.Process.Pid)
	rig.Must(t, syscall.Kill(child, syscall.SIGSTOP))
	rig.WaitUntil(t, "the child has stopped", func() bool { return process.Stopped("/proc", child) })
	rig.Must(t, held.Cmd.Process.Signal(os.Interrupt))
	held.Wait(t)
	if got := n.run(bob, n.Berth, "alloc", "--wait=1m", "8", "--", "true"); got.Code != 0 {
		t.Errorf("another one: %+v", got)
	}
	n.waitForLeases(0)
	rig.Must(t, syscall.Kill(child, syscall.SIGCONT))
	if code := stopped.Wait(t); code != 0 {
		t.Errorf("exit code %d afterwards", code)
	}
}

// holdOf returns the process of berth alloc that has asked the broker: its child.
func (n node) holdOf(pid int) (child int) {
	n.t.Helper()
	rig.WaitUntil(n.t, "berth alloc has a child", func() bool {
		lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
		rig.Must(n.t, err)
		for _, list := range lists {
			data, _ := os.ReadFile(list) // "" of a thread that has ended
			if word := strings.TrimSpace(string(data)); word != "" {
				child, err = strconv.Atoi(word)
				rig.Must(n.t, err)
			}
		}
		return child != 0
	})
	return child
}

// TestHungUp: a request ends when its connection is closed, also by a process that lives on.
func TestHungUp(t *testing.T) {
	n := start(t)
	n.broker()
	n.start(bob, n.Berth, "alloc", "all", "--", "sleep", "1000")
	n.waitForLeases(1)
	words := as(alice, "perl", "-e", connecting+`my $s = connection(); print $s qq({"version":1,"acquire":{"request":"1","wait_seconds":-1}}\n);
<$s>; <STDIN>; close $s; <STDIN>`)
	cmd := n.Command(words[0], words[1:]...)
	in, err := cmd.StdinPipe()
	rig.Must(t, err)
	p := rig.StartProcess(t, cmd)
	n.waitForQueue(1)
	_, err = in.Write([]byte("close\n"))
	rig.Must(t, err)
	n.waitForQueue(0)
	if p.HasEnded() {
		t.Error("the process has ended too")
	}
}

// TestLeavesNoCgroup: a user can't leave the cgroup of a lease, also not into one that belongs to the
// user, and can't change its limits. Inside it, the user may make cgroups.
func TestLeavesNoCgroup(t *testing.T) {
	n := start(t)
	n.broker()
	n.Do(t, "sh", "-c", "mkdir -p /sys/fs/cgroup/alice && chown -R 4711 /sys/fs/cgroup/alice")
	t.Cleanup(func() { n.Do(t, "rmdir", "/sys/fs/cgroup/alice") })
	n.start(alice, n.Berth, "alloc", "1", "--", "sleep", "1000") // another lease of the same user
	n.waitForLeases(1)
	got := n.run(alice, n.Berth, "alloc", "1", "--", "sh", "-c", `
		try() { sh -c "$1" 2>/dev/null && echo "$1"; }
		own=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)
		try 'echo $$ >/sys/fs/cgroup/alice/cgroup.procs'
		try 'echo $$ >/sys/fs/cgroup/cgroup.procs'
		try "mkdir $own/below"; try "mkdir $own/../../below"; try "rmdir $own/../../.."
		for f in cgroup.procs cgroup.threads cgroup.freeze cgroup.kill cgroup.max.depth cgroup.max.descendants cgroup.subtree_control; do
			for d in $own $own/../..; do try ": >>$d/$f"; done
		done
		for f in cgroup.freeze cgroup.kill cgroup.max.depth cgroup.max.descendants cgroup.type; do try ": >>$own/../$f"; done
		other=$(ls -d /sys/fs/cgroup/berth/alloc-*/main | grep -v $(dirname $own))
		try "echo $$ >$other/cgroup.procs"
		mkdir $own/../task && sh -c "echo \$\$ >$own/../task/cgroup.procs && `+"sed -n 's,.*/main,,p' /proc/self/cgroup"+`"
		i=0; while mkdir $own/../many-$i 2>/dev/null; do i=$((i + 1)); done; echo $i
		`+opening+`
		case $own in */main/command) echo inside;; esac`)
	n.wantSaid("in the lease", got, rig.Said{Out: "/task\n998\n1\ninside\n"})
	n.waitForLeases(1)
	// And nobody else gets in.
	n.start(bob, n.Berth, "alloc", "1", "--", "sleep", "1000")
	n.waitForLeases(2)
	got = n.run(alice, "sh", "-c", `for f in /sys/fs/cgroup/berth/alloc-*/main/cgroup.procs /sys/fs/cgroup/berth/alloc-*/main/command/cgroup.procs /sys/fs/cgroup/berth/alloc-*/cgroup.procs; do
		sh -c "echo \$\$ >$f" 2>/dev/null && echo "$f"; done; `+opening)
	n.wantSaid("from outside", got, rig.Said{Out: "\n"})
}

// TestOuterLeaseLasts: a process that takes a second lease leaves the first one's cgroup, and may have its
// devices open: the first lease lasts as long as the second.
func TestOuterLeaseLasts(t *testing.T) {
	n := start(t)
	n.broker()
	// The inner command lives on when the outer one has ended.
	n.run(alice, n.Berth, "alloc", "1", "--", "sh", "-c", n.Berth+" alloc 1 -- sleep 1000 >/dev/null 2>&1 & sleep 0.1; until "+
		n.Berth+" leases --json | grep -q 'sleep 1000'; do :; done; kill -9 $!")
	n.waitForLeases(2)
	for _, l := range n.waitForLeases(2) {
		if l.Owner.Name == "sleep" {
			n.Do(t, n.Berth, "release", "--force", l.ID)
		}
	}
	n.waitForLeases(0)
}

// TestNestedLeasesEnd: a lease ends by one forced release, also if its processes take one lease after another inside it.
func TestNestedLeasesEnd(t *testing.T) {
	n := start(t)
	n.broker()
	renew := "(trap '' HUP TERM INT; while :; do " + n.Berth + " alloc 1 -- sleep 1000; done) </dev/null >/dev/null 2>&1 & "
	for _, by := range []int{alice, 0} {
		n.start(alice, n.Berth, "alloc", "1", "--", "sh", "-c", renew+renew+"exec sleep 1000")
		for _, l := range n.waitForLeases(3) {
			if l.Owner.Name == "sh" {
				n.wantSaid("release", n.run(by, n.Berth, "release", "--force", l.ID), rig.Said{Out: "released " + l.ID + ": GPU 0\n"})
			}
		}
		n.wantSaid("all GPUs are free", n.run(alice, n.Berth, "alloc", "all", "--", "true"), rig.Said{})
		n.waitForLeases(0)
		if got := n.Do(t, "sh", "-c", "find /sys/fs/cgroup/berth -name 'alloc-*'"); got != "" {
			t.Errorf("left over: %s", got)
		}
	}
}

// TestLostLedger: the leases of users' commands, also of one inside another, are found again if the ledger is lost.
func TestLostLedger(t *testing.T) {
	n := start(t)
	n.broker()
	n.start(alice, n.Berth, "alloc", "1", "--", n.Berth, "alloc", "2", "--", "sleep", "1000")
	before := map[string]int{}
	for _, l := range n.waitForLeases(2) {
		before[l.ID] = len(l.Devices)
	}
	n.Do(t, "sh", "-c", "rm -r /run/berth/ledger.json /run/berth/leases")
	if got := n.run(bob, n.Berth, "alloc", "1", "--", "true"); got.Code != 125 || !strings.Contains(got.Err, "ledger is lost") {
		t.Errorf("%+v", got)
	} else if got.Err != "berth: the ledger is lost: root rebuilds it with berth repair\n" {
		t.Errorf("it names others' leases: %+v", got)
	}
	for _, word := range []string{"leases", "gpus"} {
		if got := n.run(bob, n.Berth, word); got.Code != 1 || got.Err != "berth: the ledger is lost: root rebuilds it with berth repair\n" {
			t.Errorf("berth %s: %+v", word, got)
		}
	}
	if got := n.run(alice, n.Berth, "release", "any"); got.Code != 1 || !strings.Contains(got.Err, "ledger is lost") {
		t.Errorf("berth release: %+v", got)
	}
	n.Do(t, n.Berth, "repair")
	for _, l := range n.waitForLeases(2) {
		if before[l.ID] != len(l.Devices) {
			t.Errorf("lease %s has %d devices, had %v", l.ID, len(l.Devices), before)
		}
	}
}

// TestRepairedLease: a lease that is found again after a lost ledger is still its user's. Where the note of an earlier
// version doesn't name the user, the lease is root's, and the command ends as usual.
func TestRepairedLease(t *testing.T) {
	n := start(t)
	n.broker()
	repair := func() (id string) {
		n.Do(t, "sh", "-c", "rm -r /run/berth/ledger.json /run/berth/leases")
		n.Do(t, n.Berth, "repair")
		return n.waitForLeases(1)[0].ID
	}
	begin := func() (p rig.Process, group string, end func()) {
		words := as(alice, n.Berth, "alloc", "2", "--", "sh", "-c", "sed -n s/^0:://p /proc/self/cgroup; read x; true")
		cmd := n.Command(words[0], words[1:]...)
		in, err := cmd.StdinPipe()
		rig.Must(t, err)
		p, out := rig.StartReading(t, cmd)
		group, err = out.ReadString('\n')
		rig.Must(t, err)
		return p, strings.TrimSuffix(group, "/main/command\n"), func() { _ = in.Close() }
	}

	p, _, _ := begin()
	id := repair()
	if got := n.run(bob, n.Berth, "release", "--force", id); got.Code != 1 || !strings.Contains(got.Err, "only root can end it") {
		t.Errorf("another user: %+v", got)
	}
	n.wantSaid("its user", n.run(alice, n.Berth, "release", "--force", id), rig.Said{Out: "released " + id + ": GPU 0,1\n"})
	p.Wait(t)

	p, group, end := begin()
	path, note := fmt.Sprintf("/proc/%d/root/sys/fs/cgroup%s", p.Cmd.Process.Pid, group), make([]byte, 4096)
	size, err := unix.Getxattr(path, "trusted.berth", note)
	rig.Must(t, err)
	rig.Must(t, unix.Setxattr(path, "trusted.berth", []byte(strings.Join(strings.Fields(string(note[:size]))[:3], " ")), 0))
	id = repair()
	if got := n.run(alice, n.Berth, "release", "--force", id); got.Code != 1 || !strings.Contains(got.Err, "only root can end it") {
		t.Errorf("a lease that names no user: %+v", got)
	}
	end()
	if code := p.Wait(t); code != 0 {
		t.Errorf("its command: exit code %d", code)
	}
	n.Do(t, n.Berth, "alloc", "all", "--", "true")
}

// TestContainers: a process in another PID or cgroup namespace gets no lease: it would leave its container's cgroup. One in
// another user namespace gets none either: its subordinate uids would have limits of their own.
func TestContainers(t *testing.T) {
	n := start(t)
	n.broker()
	for _, kind := range []string{"--pid", "--cgroup", "--map-root-user"} { // the last: a user namespace alone
		got := n.run(alice, "unshare", "--user", "--map-root-user", kind, "--fork", "perl", "-e",
			connecting+`$SIG{PIPE} = "IGNORE"; my $s = connection(); print $s qq({"version":1,"acquire":{"request":"1"}}\n); print <$s>`)
		if !strings.Contains(got.Out, "leases are for processes of the host") {
			t.Errorf("%s: %+v", kind, got)
		}
	}
	n.waitForLeases(0)
}

// TestListInUserNamespace: a process in a user namespace of its user's sees the leases that the user sees.
func TestListInUserNamespace(t *testing.T) {
	n := start(t)
	n.broker()
	list := []string{"perl", "-e", connecting + `my $s = connection(); print $s qq({"version":1,"list":{}}\n); print <$s>`}
	n.start(alice, n.Berth, "alloc", "1", "--", "sleep", "1000")
	id := n.waitForLeases(1)[0].ID
	if got := n.run(alice, append([]string{"unshare", "--user", "--map-root-user"}, list...)...); !strings.Contains(got.Out, `"id":"`+id+`"`) {
		t.Errorf("%+v", got)
	}
}

// TestTwoRequestsAtOnce: a process has one request at a time, and one lease.
func TestTwoRequestsAtOnce(t *testing.T) {
	n := start(t)
	n.broker()
	n.start(bob, n.Berth, "alloc", "all", "--", "sleep", "1000")
	held := n.waitForLeases(1)[0]
	script := connecting + `sub ask { my $s = connection(); print $s qq({"version":1,"acquire":{"request":"$_[0]","wait_seconds":60}}\n); $s }
sub last_line { my $s = shift; while (my $l = <$s>) { return $l unless $l =~ /^{"version":1,"waiting"/ } "" }
my $a = ask(1);
print <$a> =~ /waiting/ ? "waits\n" : "no\n";
print last_line(ask(1)) =~ /"caller"/ ? "refused\n" : "no\n";
my ($id) = last_line($a) =~ /"granted".*?"id":"(\w+)"/;
print last_line(ask(1)) =~ /"granted".*?"id":"$id"/ ? "the same\n" : "no\n";
print last_line(ask(2)) =~ /"caller"/ ? "refused\n" : "no\n"`
	words := as(alice, "perl", "-e", script)
	cmd := n.Command(words[0], words[1:]...)
	p, said := rig.StartReading(t, cmd)
	read := func(want string) {
		t.Helper()
		if line, _ := said.ReadString('\n'); line != want+"\n" {
			t.Errorf("%q, want %q", line, want)
		}
	}
	read("waits")
	read("refused")
	n.Do(t, n.Berth, "release", "--force", held.ID)
	read("the same")
	read("refused")
	p.Wait(t)
	n.waitForLeases(0)
}

// TestUnreadableConfiguration: a broker that systemd has started stays and answers each request with the reason: systemd
// ends a socket whose service fails again and again.
func TestUnreadableConfiguration(t *testing.T) {
	n := start(t)
	conf := filepath.Join(n.Dir, "unreadable.toml")
	rig.Must(t, os.WriteFile(conf, []byte("[policy\n"), 0o644))
	broker := filepath.Dir(n.Berth) + "/berth-broker"
	if got := n.Run(t, n.Command(broker, "--config", conf)); got.Code != 1 || strings.Count(got.Err, "\n") != 1 {
		t.Errorf("started by hand: %+v", got)
	}
	path := n.Path("/run/berth/broker.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	rig.Must(t, err)
	defer l.Close()
	rig.Must(t, os.Chmod(path, 0o666))
	socket, err := l.File()
	rig.Must(t, err)
	defer socket.Close()
	cmd := n.Command("sh", "-c", `LISTEN_PID=$$ LISTEN_FDS=1 exec "$0" --config "$1"`, broker, conf)
	cmd.ExtraFiles = []*os.File{socket}
	p := rig.StartProcess(t, cmd)
	for range 2 {
		if got := n.ask(`{"version":1,"list":{}}` + "\n"); !strings.Contains(got, `"failed"`) || !strings.Contains(got, "unreadable.toml") {
			t.Errorf("%q", got)
		}
	}
	if got := n.run(alice, n.Berth, "leases"); got.Code != 1 || !strings.Contains(got.Err, "the broker has to be restarted") || strings.Count(got.Err, "\n") != 1 {
		t.Errorf("%+v", got)
	}
	if p.HasEnded() {
		t.Error("the broker has ended")
	}
	rig.Must(t, p.Cmd.Process.Signal(unix.SIGTERM))
	if code := p.Wait(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestEndsCleanly: the broker ends at SIGTERM, and removes its socket.
func TestEndsCleanly(t *testing.T) {
	n := start(t)
	p := n.broker()
	rig.Must(t, p.Cmd.Process.Signal(unix.SIGTERM))
	if code := p.Wait(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if _, err := os.Stat(n.Path("/run/berth/broker.sock")); !os.IsNotExist(err) {
		t.Errorf("its socket: %v", err)
	}
	n.broker()
	second := n.Run(t, n.Command(filepath.Dir(n.Berth)+"/berth-broker"))
	n.wantSaid("a second one", second, rig.Said{Code: 1, Err: "berth-broker: a broker listens at /run/berth/broker.sock already\n"})
	n.wantSaid("of a user", n.run(alice, filepath.Dir(n.Berth)+"/berth-broker"), rig.Said{Code: 1, Err: "berth-broker: this needs root of the host\n"})
}

// TestLeftover: a GPU that another user's process has open isn't leased when its lease ends. The broker has the
// capabilities that it needs to see that.
func TestLeftover(t *testing.T) {
	n := start(t)
	n.broker()
	holder := n.start(alice, n.Berth, "alloc", "device=0", "--", "sleep", "1000")
	n.waitForLeases(1)
	// A device that can be opened, as no driver is behind those of simulated GPUs.
	node := func(major, minor string) {
		n.Do(t, "rm", "/dev/nvidia0")
		n.Do(t, "mknod", "-m", "666", "/dev/nvidia0", "c", major, minor)
	}
	node("1", "7")
	t.Cleanup(func() { node("195", "0") })
	device, err := os.Open(n.Path("/dev/nvidia0"))
	rig.Must(t, err)
	words := as(alice+1, "sleep", "1000")
	cmd := n.Command(words[0], words[1:]...)
	cmd.ExtraFiles = []*os.File{device}
	other := rig.StartProcess(t, cmd)
	rig.Must(t, device.Close())
	rig.WaitUntil(t, "the other user's process", func() bool {
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", other.Cmd.Process.Pid))
		return err == nil && string(name) == "sleep\n"
	})
	rig.Must(t, holder.Cmd.Process.Signal(os.Interrupt))
	holder.Wait(t)
	if said := n.run(alice, n.Berth, "alloc", "device=0", "--", "true"); said.Code != 75 || !strings.Contains(said.Err, "GPU 0 in use by sleep (") {
		t.Errorf("while another user has it open: %+v", said)
	}
	rig.Must(t, other.Cmd.Process.Kill())
	other.Wait(t)
	n.wantSaid("afterwards", n.run(alice, n.Berth, "alloc", "device=0", "--", "true"), rig.Said{})
}

// TestUnsearched: processes that have too many files open to be searched count as if they had every GPU open, and everybody is
// told so. Requests end although some of these end all the time, and get GPUs soon after there are few.
func TestUnsearched(t *testing.T) {
	n := start(t)
	n.broker()
	words := as(alice+1, "bash", "-c", `ulimit -n 20000; for ((i = 0; i < 19900; i++)); do exec {file}< /dev/null; done
		for i in {1..15}; do sleep 1000 & done; many=$(jobs -p | head -13); (while :; do sleep .05; done) & short=$!
		trap 'kill $(jobs -p)' EXIT; trap exit INT; echo; read; kill $many $short; wait`)
	cmd := n.Command(words[0], words[1:]...)
	in, err := cmd.StdinPipe()
	rig.Must(t, err)
	other, out := rig.StartReading(t, cmd)
	_, err = out.ReadString('\n')
	rig.Must(t, err)
	n.Do(t, n.Berth, "alloc", "1", "--", "true") // its end searches
	for range 3 {
		said := n.Run(t, n.Command(n.Berth, "alloc", "1", "--", "true"))
		if said.Code != 75 || !strings.Contains(said.Err, fmt.Sprintf(", %d, too many open files to be searched)", alice+1)) {
			t.Errorf("a request: %+v", said)
		}
	}
	if got := n.Do(t, n.Berth, "gpus"); strings.Contains(got, "free") || !strings.Contains(got, "too many open files to be searched") {
		t.Errorf("the list of GPUs:\n%s", got)
	}
	_, err = io.WriteString(in, "\n")
	rig.Must(t, err)
	n.Do(t, n.Berth, "alloc", "--wait=1m", "8", "--", "true")
	rig.Must(t, other.Cmd.Process.Signal(os.Interrupt))
	other.Wait(t)
}
