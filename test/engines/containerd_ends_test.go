package engines

import (
	"strings"
	"testing"
)

// TestContainerdEnds checks that berth run and berth exec end with the task, and by one signal, whatever the task
// does.
func TestContainerdEnds(t *testing.T) {
	skipUnlessWanted(t)
	t.Parallel() // on hosts of its own
	for _, on := range [][]string{{"forky", "v2"}, {"bookworm", "v1"}} {
		t.Run(strings.Join(on, "/"), func(t *testing.T) {
			c := newTaskRunner(t, "-ends", on[0], on[1])
			for _, tt := range endingTasks {
				t.Run(tt.name, func(t *testing.T) {
					got := c.run(t, "timeout", "-k", "1", "25", "bash", "-c", endingFunctions+tt.script, c.dir, shared.Berth, c.image)
					if got.code != 0 || got.out != tt.out {
						t.Errorf("exit code %d, output %q, want %q: %s", got.code, got.out, tt.out, got.err)
					}
					c.run(t, "sh", "-c", shared.Berth+" --engine containerd ps -aq | xargs -r "+shared.Berth+" --engine containerd rm -f")
					c.waitForHeld(t, map[string]int{})
				})
			}
		})
	}
}

// endingFunctions: ends waits for a process for 8 seconds and prints its exit code; holds lets a process of the
// host open the output of the container's process with this command line.
const endingFunctions = `
b=$1 image=$2
ends() { for n in {1..80}; do kill -0 $1 2>/dev/null || break; sleep 0.1; done; kill -KILL $1 2>/dev/null; wait $1; echo "code $?"; }
find_process() { for f in /proc/[0-9]*/cmdline; do [ "$(tr '\0' ' ' <$f 2>/dev/null)" != "$1 " ] || pid=${f//[!0-9]/}; done; [ -n "$pid" ]; }
holds() { until find_process "$1"; do sleep 0.05; done; sleep 1000 9>/proc/$pid/fd/1 >/dev/null 2>&1 & holder=$!; }
`

var endingTasks = []struct{ name, script, out string }{
	{"exec that the task stops", `
		$b --engine containerd run -d --name stops $image sh -c 'while :; do for p in /proc/[0-9]*; do p=${p#/proc/}; [ $p = 1 ] || [ $p = $$ ] || kill -STOP $p; done; done' >/dev/null
		$b --engine containerd exec stops true & p=$!
		sleep 1; kill -TERM $p; ends $p
		cat /proc/[0-9]*/cmdline 2>/dev/null | grep -ao 'pid-file.*[/]exec-'; true`, "code 143\n"},
	{"detached exec that the task stops", `
		$b --engine containerd run -d --name stops $image sh -c 'while :; do for p in /proc/[0-9]*; do p=${p#/proc/}; [ $p = 1 ] || [ $p = $$ ] || kill -STOP $p; done; done' >/dev/null
		$b --engine containerd exec -d stops true & p=$!
		sleep 1; kill -TERM $p; ends $p`, "code 143\n"},
	{"output that isn't read", `
		mkfifo $0/unread; sleep 1000 <>$0/unread & reader=$!
		$b --engine containerd run --gpus 1 $image sh -c 'head -c 3000000 /dev/zero; sleep 1000' >$0/unread & p=$!
		sleep 2; kill -TERM $p; ends $p; kill $reader; rm $0/unread`, "code 143\n"},
	{"output whose reader ends", `
		exec 3>&1
		{ timeout 20 $b --engine containerd run --gpus 1 $image yes 3>&-; echo "code $?" >&3; } | head -1`, "y\ncode 143\n"},
	{"run whose output is held", `
		$b --engine containerd run --gpus 1 $image sh -c 'echo said; sleep 3.51; exit 3' & p=$!
		holds 'sleep 3.51'; ends $p; kill $holder`, "said\ncode 3\n"},
	{"kept run whose output is held", `
		$b --engine containerd run --rm=false --name kept $image sh -c 'echo said; sleep 3.51; exit 3' & p=$!
		holds 'sleep 3.51'; ends $p; kill $holder
		$b --engine containerd ps -a | grep -o 'exited ([0-9]*)'`, "said\ncode 3\nexited (3)\n"},
	{"exec whose output is held", `
		$b --engine containerd run -d --name runs $image sleep 1000 >/dev/null
		$b --engine containerd exec runs sh -c 'echo said; sleep 3.51; echo more; exit 3' & p=$!
		holds 'sleep 3.51'; ends $p; kill $holder`, "said\nmore\ncode 3\n"},
	{"signals while the task is created", `
		for ms in {050..215..15}; do
			$b --engine containerd run --gpus 1 $image sleep 1000 & p=$!
			sleep 0.$ms; kill -TERM $p; wait $p; echo "code $?"
		done 2>/dev/null | uniq
		find /sys/fs/cgroup -type d -path '*/berth/????????????'`, "code 143\n"},
}
