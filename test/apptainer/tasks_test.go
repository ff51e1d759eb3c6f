package apptainer

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/test/rig"
)

var (
	taskCount  = flag.Int("tasks", 300, "`tasks` of three users, half of them with Apptainer")
	startCount = flag.Int("starts", 400, "`commands` that start at once")
	taskSeed   = flag.Uint64("seed", 1, "`seed` of what is drawn for the tasks; 0 draws one")
)

// tasks are commands that are started by runTasks.
type tasks struct {
	All []task
	// AtOnce is how many of one user run at a time.
	AtOnce int
}

type task struct {
	UID   int
	Words []string
	// KillAfter is when a process of the task is killed after its start, or with KillHolding after its first output; 0 for never. It is the
	// one that was started, or with KillAny a random one of its session.
	KillAfter            time.Duration
	KillHolding, KillAny bool
}

// ended says how a task ended.
type ended struct{ Out, Err, End string }

// runTasks runs the tasks that it reads, each in a session of its own, and writes the ends of all. It runs as root inside the server.
func runTasks(in io.Reader, out io.Writer) error {
	var all tasks
	if err := json.NewDecoder(in).Decode(&all); err != nil {
		return err
	}
	slots := map[int]chan bool{}
	for _, t := range all.All {
		if slots[t.UID] == nil {
			slots[t.UID] = make(chan bool, all.AtOnce)
		}
	}
	ends := make([]ended, len(all.All))
	var wait sync.WaitGroup
	for i, t := range all.All {
		wait.Go(func() {
			slots[t.UID] <- true
			ends[i] = t.run()
			<-slots[t.UID]
		})
	}
	wait.Wait()
	return json.NewEncoder(out).Encode(ends)
}

func (t task) run() ended {
	cmd := exec.Command(t.Words[0], t.Words[1:]...)
	cmd.Dir = fmt.Sprintf("/home/%s", userNames()[t.UID])
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + cmd.Dir, "LANG=C.UTF-8"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: uint32(t.UID), Gid: uint32(t.UID)}}
	out, errs := output{first: make(chan bool)}, bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.WaitDelay = time.Minute // processes that a killed one has left hold the pipes
	if err := cmd.Start(); err != nil {
		return ended{End: err.Error()}
	}
	over := make(chan bool)
	defer close(over)
	if t.KillAfter > 0 {
		go t.kill(cmd.Process.Pid, out.first, over)
	}
	_ = cmd.Wait() // see ProcessState
	return ended{out.String(), errs.String(), describeEnd(cmd.ProcessState.Sys().(syscall.WaitStatus))}
}

// output is a buffer that tells of the first output.
type output struct {
	bytes.Buffer
	first chan bool
}

func (o *output) Write(p []byte) (int, error) {
	if o.Len() == 0 {
		close(o.first)
	}
	return o.Buffer.Write(p)
}

// kill kills a process of the task, unless the task is over before.
func (t task) kill(session int, output, over <-chan bool) {
	if t.KillHolding {
		select {
		case <-output:
		case <-over:
		}
	}
	select {
	case <-time.After(t.KillAfter):
	case <-over:
		return
	}
	victim := session
	if found := listSession(session); t.KillAny && len(found) > 0 {
		victim = found[rand.IntN(len(found))]
	}
	_ = unix.Kill(victim, unix.SIGKILL) // it may have ended
}

// listSession returns the processes of a session.
func listSession(session int) (found []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if sid, err := unix.Getsid(pid); err == nil && sid == session {
			found = append(found, pid)
		}
	}
	return found
}

func userNames() map[int]string { return map[int]string{userID: user, 4712: "bob", 4713: "carl"} }

// taskScript opens all GPUs, has to get one, and locks the file of this one while it holds it. What is wrong is written to the file wrong. Nodes that the
// kernel lets a process open have no driver: the error is ENXIO.
const taskScript = `own=
for n in 0 1 2 3 4 5 6 7; do
	case $( (: </dev/nvidia$n) 2>&1) in
	*"No such device or address"*) own="$own $n" ;;
	*"not permitted"* | *"No such file"* ) ;;
	*) own="$own $n?" ;;
	esac
done
set -- $own
[ $# = 1 ] || { echo "$TASK opens:$own" >>/shared/wrong; exit 3; }
exec 9</shared/$1
flock -n 9 || { echo "$TASK: another one holds GPU $1" >>/shared/wrong; exit 4; }
echo "GPU $1"
sleep $HOLD
`

// prepareTasks makes the other users and the files of the tasks, and turns the device guard on.
const prepareTasks = `for user in 4712:bob 4713:carl; do useradd --uid ${user%:*} --user-group --create-home --shell /bin/bash ${user#*:}; done
mkdir /shared
touch /shared/wrong /shared/0 /shared/1 /shared/2 /shared/3 /shared/4 /shared/5 /shared/6 /shared/7
chmod 666 /shared/*
cat >/shared/task
berth guard on
`

// leftovers lists what tasks may leave: leases, processes, mounts, cgroups and files.
const leftovers = `berth leases
ps -e -o user=,args= | grep -E '^(ann|bob|carl) '
cut -d' ' -f5 /proc/self/mountinfo | sort
find /sys/fs/cgroup -type d | sort
find /run /var/lib/berth /home /tmp /dev/shm -path /run/simnode -prune -o ! -path '*/.apptainer/*' -print | sort
true
`

// TestTasksOfThreeUsers runs tasks on eight GPUs, half of them by berth apptainer and half by Apptainer under berth alloc, and kills processes of
// a quarter of them. No GPU has two tasks at a time, none opens another one, and nothing is left.
func TestTasksOfThreeUsers(t *testing.T) {
	s := startServer(t)
	cmd := s.Command("sh", "-ec", prepareTasks)
	cmd.Stdin = strings.NewReader(taskScript)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("prepare: %v: %s", err, out)
	}
	seed := *taskSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	draw := func(i int) task {
		words := []string{
			"env", fmt.Sprintf("TASK=task %d", i), fmt.Sprintf("HOLD=0.%d", 1+r.IntN(4)),
			"berth", "apptainer", "exec", "--wait=10m", "--nv", "-B", "/shared", "/images/debian.sif", "sh", "/shared/task",
		}
		if i/3%2 == 0 {
			words = append(words[:3], "berth", "alloc", "--wait=10m", "1", "--", apptainerProgram, "-q", "exec", "--nv", "-B", "/shared", "/images/debian.sif", "sh", "/shared/task")
		}
		return task{UID: userID + i%3, Words: words}
	}
	warm, storm := tasks{AtOnce: 1}, tasks{AtOnce: 16}
	for i := range 6 { // what the first commands of a user make stays
		warm.All = append(warm.All, draw(i))
	}
	s.runAll(t, warm)
	before := s.waitUnchanged(t)
	for i := range *taskCount {
		k := draw(i)
		switch r.IntN(8) {
		case 0:
			k.KillAfter, k.KillAny = time.Duration(1+r.IntN(4000))*time.Millisecond, r.IntN(2) == 0
		case 1:
			k.KillAfter, k.KillAny, k.KillHolding = time.Duration(1+r.IntN(400))*time.Millisecond, r.IntN(2) == 0, true
		}
		storm.All = append(storm.All, k)
	}
	held := map[string]int{}
	for _, e := range s.runAll(t, storm) {
		held[e.Out]++
	}
	t.Logf("tasks by GPU: %v", held)
	data, err := os.ReadFile(s.Path("/shared/wrong"))
	rig.Must(t, err)
	if len(data) > 0 {
		t.Errorf("wrong:\n%s", data)
	}
	if after := s.waitUnchanged(t); after != before {
		t.Errorf("left (-before +after):\n%s", cmp.Diff(before, after))
	}
}

// runAll runs tasks, and reports those that fail without being killed.
func (s *server) runAll(t *testing.T, all tasks) (ends []ended) {
	t.Helper()
	started := time.Now()
	rig.Must(t, s.runSelf("tasks", all, &ends))
	t.Logf("%d tasks took %v", len(ends), time.Since(started).Round(time.Second))
	for i, e := range ends {
		if k := all.All[i]; k.KillAfter == 0 && e.End != "exit code 0" {
			t.Errorf("%q: %+v", k.Words, e)
		}
	}
	return ends
}

// waitUnchanged returns what is there when no process of a user is left.
func (s *server) waitUnchanged(t *testing.T) (left string) {
	t.Helper()
	for range 60 {
		out, err := s.Command("sh", "-c", leftovers).CombinedOutput()
		rig.Must(t, err)
		left = string(out)
		if strings.HasPrefix(left, "there are no leases") && !strings.Contains(left, "\nann ") && !strings.Contains(left, "\nbob ") && !strings.Contains(left, "\ncarl ") {
			break
		}
		time.Sleep(time.Second)
	}
	return left
}

// TestManyStarts starts commands of one image at once: all of them run.
func TestManyStarts(t *testing.T) {
	s := startServer(t)
	all := tasks{AtOnce: *startCount}
	for i := range *startCount {
		all.All = append(all.All, task{UID: userID, Words: []string{"berth", "apptainer", "exec", "/images/bare.sif", "echo", strconv.Itoa(i)}})
	}
	for i, e := range s.runAll(t, all) {
		if e.Out != strconv.Itoa(i)+"\n" || e.Err != "" {
			t.Errorf("start %d: %+v", i, e)
		}
	}
}
