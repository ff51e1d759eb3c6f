package packages

import (
	"bufio"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
)

var (
	mixTasks = flag.Int("mix.tasks", 100, "`tasks` of the users and of root")
	mixSeed  = flag.Uint64("mix.seed", 1, "`seed` of what is drawn; 0 draws one")
)

// TestMixedUsers has three users and root share eight GPUs in all the ways that a server offers: over
// sshd, by cron and at, in services of the system's and of the user's systemd; as plain commands, by
// berth run, and with Debian's podman, bubblewrap, Apptainer and docker. Each task looks all its life
// whether it opens the GPUs of its lease and no others, and holds a lock of each, so that two leases
// of one GPU are seen. Processes of each user without a lease get EPERM at each GPU, all the time. Clients,
// brokers, monitors, runtimes, engines and tasks are killed at random meanwhile.
//
// At the end no lease, cgroup, process or mount is left; a task that was not killed has ended with exit code 0.
// And a GPU whose open device a user has passed to another one isn't leased before that process has ended.
//
// podman runs with --cgroups=disabled: systemd's cgroups take its containers out of the lease (docs/broker.md).
//
// What is drawn follows from the seed; when it happens doesn't.
func TestMixedUsers(t *testing.T) {
	m := newMix(t)
	user := m.ssh("alice", "/mix/opener show /dev/nvidia")
	m.wantOpen("a user without the guard", user, "01234567")
	m.do("systemctl", "enable", "--now", "berth-guard.service", "berth-broker.socket")
	m.wantOpen("a user", user, "")
	m.checkPodmanWithoutSession()
	before := m.listMounts()

	m.storm()
	m.checkRecords()
	m.removeTasks()
	m.checkNothingLeft(before)
	m.wantOpen("a user after all leases", user, "")
	m.checkLeftover()

	m.do("systemctl", "stop", "berth-guard.service")
	m.wantOpen("a user without the guard again", user, "01234567")
}

// mixUsers are the users without root.
var mixUsers = []string{"alice", "bob", "carol"}

// mix is the server with its tasks.
type mix struct {
	host
	seed uint64
	jobs []*job

	mu     sync.Mutex
	hit    map[string]int  // kills of a job's processes, by its name
	spared map[string]bool // jobs of which nothing may be killed
	kills  map[string]int  // by what was killed
}

func newMix(t *testing.T) *mix {
	m := &mix{host: boot(t, "users", "v2"), seed: *mixSeed, hit: map[string]int{}, spared: map[string]bool{}, kills: map[string]int{}}
	if m.seed == 0 {
		m.seed = rand.Uint64()
	}
	t.Logf("-mix.seed %d", m.seed)
	if code, _ := m.run("which", "apptainer"); code != 0 {
		t.Log("without Apptainer, which couldn't be installed (test/engines/tree.sh)")
		mixWays = slices.DeleteFunc(mixWays, func(w *way) bool { return strings.HasPrefix(w.name, "Apptainer") })
	}
	opener := filepath.Join(shared, "opener")
	if out, err := exec.Command("cc", "-O1", "-Wall", "-Werror", "-static", "-o", opener, "testdata/opener.c").CombinedOutput(); err != nil {
		t.Fatalf("compile opener: %v: %s", err, out)
	}
	m.do(dpkg().install(older)...)
	// crun wants the controller io, which a machine that binds it to version 1 lacks on 2.
	m.do("sed", "-i", `s/^runtime = .*/runtime = "runc"/`, "/etc/berth/config.toml")
	// The layers of users' containers can't be on the server's own root, which is an overlay itself.
	m.do("sh", "-ec", `mount -t tmpfs -o mode=755 tmpfs /home
ssh-keygen -q -t ed25519 -N '' -f /root/key
for user; do
	useradd --create-home --shell /bin/bash "$user"
	mkdir "/home/$user/.ssh"
	cp /root/key.pub "/home/$user/.ssh/authorized_keys"
	cp -r "$0/image" "/home/$user/image"
	mkdir "/home/$user/image/mix"
	chown -R "$user:" "/home/$user"
done
printf 'MaxStartups 1000\nPerSourcePenalties no\n' >/etc/ssh/sshd_config.d/storm.conf
systemctl restart ssh
mkdir /mix
mount -t tmpfs -o mode=755 tmpfs /mix
cp "$0/opener" /mix
mkdir /mix/locks
cd /mix
touch locks/0 locks/1 locks/2 locks/3 locks/4 locks/5 locks/6 locks/7 records violations
chmod 666 locks/* records violations
berth gpus --format '{{.GPU}} {{.UUID}}' >gpus
berth setup docker
systemctl daemon-reload
systemctl restart docker
tar -C "$0/image" -c . | docker import - test`, shared, "alice", "bob", "carol")
	m.jobs = drawJobs(rand.New(rand.NewPCG(m.seed, 0)), *mixTasks)
	return m
}

// ssh returns the words by which a user runs a shell's command over ssh.
func (m *mix) ssh(user, script string) []string {
	return []string{
		"ssh", "-q", "-n", "-i", "/root/key", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null",
		user + "@127.0.0.1", script,
	}
}

// wantOpen checks which GPUs a command of opener show can open.
func (m *mix) wantOpen(who string, words []string, want string) {
	m.t.Helper()
	if got := strings.TrimSpace(m.do(words...)); got != want+"." {
		m.t.Errorf("%s opens GPUs %q, want %q", who, got, want+".")
	}
}

// checkPodmanWithoutSession: the process that podman leaves for its next calls stays in the lease if the user's
// systemd doesn't run, as docs/broker.md says, and the lease ends with it.
func (m *mix) checkPodmanWithoutSession() {
	m.t.Helper()
	asCarol := func(script string) []string {
		return []string{
			"systemd-run", "--quiet", "--pipe", "--wait", "--uid", "carol", "--working-directory", "/home/carol", "--setenv", "HOME=/home/carol",
			"sh", "-c", script,
		}
	}
	said := m.do(asCarol("berth alloc 1 -- podman run --rm --cgroups=disabled --network none --rootfs image:O /probe </dev/null 2>&1")...)
	if want := "the command left 1 process running"; !strings.Contains(said, want) {
		m.t.Errorf("berth alloc says %q, want %q", said, want)
	}
	m.do(asCarol("podman system migrate 2>/dev/null")...)
	m.until("sh", "-c", "berth alloc 1 -- true && berth leases | grep -q 'no leases'")
}

// cronScript is what cron runs for each user in each minute.
const cronScript = `#!/bin/sh
name=cron-$(id -un)
/mix/opener none /dev/nvidia $name-none 3000 &
berth alloc --wait 1 -- /mix/opener hold /dev/nvidia $name 1 500
wait
`

// storm runs all jobs to their ends, while processes without a lease try to open GPUs and others are killed.
func (m *mix) storm() {
	m.t.Helper()
	m.do("sh", "-ec", `printf %s "$0" >/mix/cron; chmod 755 /mix/cron
for user; do echo '* * * * * /mix/cron' | crontab -u "$user" -; done`, cronScript, "alice", "bob", "carol")
	var outsiders, work, killer sync.WaitGroup
	for _, user := range mixUsers {
		const none = "/mix/opener none /dev/nvidia "
		for _, words := range [][]string{
			m.ssh(user, none+"ssh-"+user+" 0"),
			m.ssh(user, "echo '"+none+"at-"+user+" 0' | at now 2>/dev/null"),
			m.ssh(user, "systemd-run --user --quiet --pipe --wait "+none+"user-service-"+user+" 0"),
			append([]string{"systemd-run", "--quiet", "--pipe", "--wait", "--uid", user}, strings.Fields(none+"service-"+user+" 0")...),
		} {
			outsiders.Go(func() {
				if code, said := m.run(words...); code != 0 {
					m.t.Errorf("%q: exit code %d: %s", words, code, said)
				}
			})
		}
	}
	for _, user := range mixUsers {
		// The first call leaves a process, which stays in a lease if podman is killed at that moment.
		m.do(m.ssh(user, "podman unshare true 2>/dev/null")...)
	}
	calm := make(chan struct{})
	killer.Go(func() { m.killAtRandom(calm, rand.New(rand.NewPCG(m.seed, 1))) })
	begin := time.Now()
	slots := make(chan struct{}, 8)
	for _, j := range m.jobs {
		slots <- struct{}{}
		work.Go(func() {
			defer func() { <-slots }()
			m.launch(j)
		})
	}
	work.Wait()
	close(calm)
	killer.Wait()
	m.t.Logf("%d tasks in %v; killed: %v", len(m.jobs), time.Since(begin).Round(time.Second), m.kills)
	for _, user := range mixUsers {
		m.until("sh", "-c", `grep -q "^held cron-$0 " /mix/records && grep -q "^none cron-$0-none " /mix/records`, user)
		m.do("crontab", "-u", user, "-r")
	}
	m.do("touch", "/mix/end")
	outsiders.Wait()
}

// checkRecords checks what the tasks have seen.
func (m *mix) checkRecords() {
	m.t.Helper()
	if said := m.do("cat", "/mix/violations"); said != "" {
		m.t.Errorf("from inside:\n%s", said)
	}
	records := strings.Split(m.do("cat", "/mix/records"), "\n")
	looks := map[string]int{} // of those that have ended, by "hold NAME" or "none NAME"
	for _, line := range records {
		var what, name string
		var n int
		if _, err := fmt.Sscanf(line, "%s %s %d", &what, &name, &n); err == nil && what != "hold" {
			looks[what+" "+name] += n
		}
	}
	for _, user := range mixUsers {
		for _, way := range []string{"ssh-" + user, "at-" + user, "user-service-" + user, "service-" + user, "cron-" + user + "-none"} {
			if looks["none "+way] < 10 {
				m.t.Errorf("%s has looked %d times", way, looks["none "+way])
			}
		}
	}
	ways := map[string]int{}
	for _, j := range m.jobs {
		what := "held "
		if j.way.unleased {
			what = "none "
		}
		if looks[what+j.name] > 0 {
			ways[j.way.name]++
		} else if m.hits(j.name) == 0 {
			m.t.Errorf("%s by %s has no end", j.name, j.way.name)
		}
	}
	for _, w := range mixWays {
		if ways[w.name] == 0 {
			m.t.Errorf("no task by %s has ended by itself", w.name)
		}
	}
	if len(m.hit) < len(m.jobs)/8 {
		m.t.Errorf("%d tasks were killed", len(m.hit))
	}
	m.t.Logf("ended by themselves: %v", ways)
}

// removeTasks removes the records of tasks and the containers that engines keep after a kill, and ends the processes that they
// leave outside of leases, such as a conmon whose podman was killed.
func (m *mix) removeTasks() {
	m.t.Helper()
	for _, v := range m.findVictims() {
		if slices.ContainsFunc(m.jobs, func(j *job) bool { return j.name == v.name && j.way.unleased }) {
			_ = unix.PidfdSendSignal(v.pidfd, unix.SIGKILL, nil, 0) // it may have ended
		}
		v.close()
	}
	const remove = `ids=$(berth ps -a -q); [ -z "$ids" ] || berth rm -f $ids >/dev/null; left=$(berth ps -a -q); [ -z "$left" ]`
	for _, user := range mixUsers {
		m.do(m.ssh(user, remove+`; podman rm -a -f >/dev/null 2>&1`)...)
	}
	m.do("sh", "-ec", remove+`; ids=$(docker ps -a -q); [ -z "$ids" ] || docker rm -f $ids`)
}

// checkNothingLeft checks that no process, lease, cgroup, task or mount is left.
func (m *mix) checkNothingLeft(mounts []string) {
	m.t.Helper()
	var left []string
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		left = nil
		for _, v := range m.findVictims() {
			if v.kind != "broker" {
				left = append(left, fmt.Sprintf("%s %s %d", v.kind, v.name, v.pid))
			}
			v.close()
		}
		if len(left) == 0 {
			break
		}
	}
	if len(left) > 0 {
		m.t.Errorf("processes are left: %q", left)
	}
	const all = `for i in $(seq 300); do berth alloc 8 -- true 2>/dev/null && exit; sleep 0.1; done; berth leases
for file in $(find /sys/fs/cgroup -path '*/berth/*' -name cgroup.procs); do
	while read -r pid; do echo "$file $pid" && ps -f -p "$pid"; done <"$file"
done
exit 1`
	if code, said := m.run("sh", "-c", all); code != 0 {
		m.t.Errorf("not all GPUs are free: %s", said)
	}
	if said := m.do("berth", "leases"); said != "there are no leases and no waiting requests\n" {
		m.t.Errorf("leases are left: %s", said)
	}
	const look = `find /run/berth/leases /var/lib/berth/tasks /home/*/.local/share/berth/tasks -mindepth 1 2>/dev/null
find /sys/fs/cgroup -mindepth 1 -type d -path '*berth*' ! -path '/sys/fs/cgroup/system.slice/berth-*.service' ! -path /sys/fs/cgroup/berth ! -path /sys/fs/cgroup/berth/monitors ! -path /sys/fs/cgroup/berth-nvml`
	if said := m.do("sh", "-c", look); said != "" {
		m.t.Errorf("these are left:\n%s", said)
	}
	if diff := cmp.Diff(mounts, m.listMounts()); diff != "" {
		m.t.Errorf("mounts before and after:\n%s", diff)
	}
}

// listMounts lists the mounts of the server without those of sessions.
func (m *mix) listMounts() []string {
	m.t.Helper()
	var all []string
	for line := range strings.Lines(m.do("cat", "/proc/1/mountinfo")) {
		if at := strings.Fields(line)[4]; !strings.HasPrefix(at, "/run/user/") {
			all = append(all, at)
		}
	}
	slices.Sort(all)
	return all
}

// checkLeftover: a GPU whose open device a user's task has passed to another user's process isn't leased before that
// process has ended.
func (m *mix) checkLeftover() {
	m.t.Helper()
	build := exec.Command("go", "build", "-o", filepath.Join(shared, "pass"), "../guard/testdata/pass")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		m.t.Fatalf("%v: %s", err, out)
	}
	m.do("cp", filepath.Join(shared, "pass"), "/mix/pass")
	// The number of /dev/full, which can be opened: no driver is behind those of simulated GPUs.
	m.do("sh", "-ec", "rm /dev/nvidia0; mknod -m 666 /dev/nvidia0 c 1 7")
	ask := m.ssh("carol", "berth alloc device=0 -- true")
	for _, sender := range [][]string{
		m.ssh("alice", "berth alloc device=0 -- /mix/pass send /tmp/passed-1 /dev/full"),
		m.ssh("alice", "berth alloc device=0 -- sh -c '/mix/pass send /tmp/passed-2 /dev/full; kill -9 $PPID'"),
	} {
		socket := strings.Fields(sender[len(sender)-1])
		path := socket[slices.IndexFunc(socket, func(word string) bool { return strings.HasPrefix(word, "/tmp/passed") })]
		cmd := m.Command(slices.DeleteFunc(m.ssh("bob", "/mix/pass receive "+path), func(word string) bool { return word == "-n" })...)
		in, err := cmd.StdinPipe()
		testutil.Must(m.t, err)
		out, err := cmd.StdoutPipe()
		testutil.Must(m.t, err)
		testutil.Must(m.t, cmd.Start())
		m.run(sender...) // the killed one fails
		if got, err := bufio.NewReader(out).ReadString('\n'); err != nil || got != "received\n" {
			m.t.Errorf("%q, %v", got, err)
		}
		if code, said := m.run(ask...); code != 75 || !strings.Contains(said, "in use by pass (") {
			m.t.Errorf("exit code %d, %s; want 75 and the process that has the GPU open", code, said)
		}
		testutil.Must(m.t, in.Close()) // it ends with its input
		testutil.Must(m.t, cmd.Wait())
		m.do(ask...)
	}
	m.do("sh", "-ec", "rm /dev/nvidia0; mknod -m 666 /dev/nvidia0 c 195 0")
}
