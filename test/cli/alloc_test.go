package cli

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestAlloc: the command sees its devices, and nested containers get them.
func TestAlloc(t *testing.T) {
	t.Parallel()
	t.Run("cgroup v2", func(t *testing.T) { testAlloc(t, options{}) })
	t.Run("cgroup v1", func(t *testing.T) { testAlloc(t, options{v1: true}) })
}

func testAlloc(t *testing.T, o options) {
	n := newNode(t, "dgx-h100", o)
	uuids := func(indexes ...int) string {
		all := n.gpus().Devices
		var list []string
		for _, i := range indexes {
			list = append(list, all[i].UUID)
		}
		return strings.Join(list, ",")
	}
	for _, c := range []struct{ name, request, script, want string }{
		{"environment", "2,5", "echo $CUDA_VISIBLE_DEVICES $BERTH_DEVICES $CUDA_DEVICE_ORDER", uuids(2, 5) + " " + uuids(2, 5) + " PCI_BUS_ID\n"},
		{"a container has them all", "2,5", `berth run "$IMAGE" ls /dev | grep -x 'nvidia[0-9]'`, "nvidia2\nnvidia5\n"},
		{"a container has one of them", "2,5", `berth run --gpus 1 "$IMAGE" ls /dev | grep -x 'nvidia[0-9]'`, "nvidia2\n"},
		{"a container has a named one", "2,5", `berth run --gpus device=5 "$IMAGE" ls /dev | grep -x 'nvidia[0-9]'`, "nvidia5\n"},
		{"a container has none", "2,5", `berth run --gpus none "$IMAGE" ls /dev | grep -cx 'nvidia[0-9]'; true`, "0\n"},
		{"a container wants more", "2,5", `berth run --gpus 3 "$IMAGE" true 2>&1; echo $?`, "berth: request 3: the lease ID around this process has only GPU 2,5\n125\n"},
		{"a container wants another", "2,5", `berth run --gpus device=0 "$IMAGE" true 2>&1; echo $?`, "berth: request device=0: the lease ID around this process has only GPU 2,5\n125\n"},
		{"a container wants what isn't there", "2,5", `berth run --gpus 9 "$IMAGE" true 2>&1; echo $?`, "berth: request 9: node has 8 GPUs, 9 asked; berth gpus lists the node's devices\n125\n"},
		{
			"a lease inside is another", "2,5", `berth alloc all -- true 2>&1; echo $?; berth alloc 6 -- sh -c 'berth run "$IMAGE" ls /dev | grep -cx "nvidia[0-9]"'`,
			"berth: request all: 8 asked, 6 of 8 free; held: GPU 2,5 by alloc sh since TIME; wait for them with --wait, or see berth leases\n75\n6\n",
		},
		{"its own lease, if it is told so", "2,5", `env -u BERTH_LEASE berth run --gpus device=0 "$IMAGE" ls /dev | grep -x 'nvidia[0-9]'`, "nvidia0\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n.as(t).berth("alloc", c.request, "--", "sh", "-c", c.script).is(0, c.want, "")
		})
	}
	n.checkClean(t)
}

// TestForgedLease: a lease's id alone gives no access to its devices.
func TestForgedLease(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "one-gpu")
	holder := n.start("berth", "alloc", "1", "--", "sleep", "1000")
	id := n.waitForLeases(1)[0].ID
	const unset = "; unset BERTH_LEASE to take a lease of its own"
	n.sh("BERTH_LEASE="+id+` berth run "$IMAGE" true`).fails(125, "berth: use lease ID: this process is not part of its holder (alloc)"+unset)
	n.sh("BERTH_LEASE="+id+` berth run --gpus 1 "$IMAGE" true`).fails(125, "berth: use lease ID: this process is not part of its holder (alloc)"+unset)
	n.sh(`BERTH_LEASE=xyz berth run "$IMAGE" true`).fails(125, `berth: use lease "xyz": no such lease`+unset)
	holder.signal(syscall.SIGTERM)
	holder.wait()
	n.checkClean(t)
}

// TestBackground: processes that the command leaves in the background keep the lease until they
// end.
func TestBackground(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "one-gpu")
	n.berth("alloc", "1", "--", "sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $! > /run/pid").
		is(0, "", "berth: the command left 1 process running; GPU 0 stays leased until the last has ended\n")
	if note := n.waitForLeases(1)[0].Note; !strings.Contains(note, "processes live in its cgroup") {
		t.Errorf("the lease's note is %q", note)
	}
	n.berth("alloc", "1", "--", "true").fails(75,
		"berth: request 1: 1 asked, 0 of 1 free; held: GPU 0 by alloc sh since TIME; wait for them with --wait, or see berth leases")
	n.sh("kill $(cat /run/pid)").ok()
	n.waitForLeases(0)
	n.berth("alloc", "1", "--", "true").is(0, "", "")
	n.checkClean(t)
}

// TestKilledAlloc: after berth was killed the command continues with its lease.
func TestKilledAlloc(t *testing.T) {
	t.Parallel()
	for _, o := range []options{{}, {v1: true}} {
		t.Run(fmt.Sprintf("v1 %v", o.v1), func(t *testing.T) {
			n := newNode(t, "one-gpu", o)
			n.berth("discover", "-q").ok()
			p := n.start("berth", "alloc", "1", "--", "sh", "-c", "echo $$; echo ready; exec sleep 1000")
			p.says("ready")
			command, _, _ := strings.Cut(p.stdout.String(), "\n")
			p.signal(syscall.SIGKILL)
			p.wait()
			n.waitForLeases(1)
			if busy := n.berth("alloc", "1", "--", "true"); busy.code != 75 {
				t.Errorf("another lease: code %d", busy.code)
			}
			n.sh("kill " + command).ok()
			n.waitForLeases(0)
			n.berth("alloc", "1", "--", "true").is(0, "", "")
			n.checkClean(t)
		})
	}
}

// TestKilledEarly: at whatever moment berth is killed, a running command has its lease, and the
// next request removes a lease without a command.
func TestKilledEarly(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "one-gpu")
	for i := range 30 {
		p := n.start("berth", "alloc", "1", "--", "sh", "-c", "echo started; exec sleep 1000")
		time.Sleep(time.Duration(i) * time.Millisecond) // somewhere in its first moments
		p.signal(syscall.SIGKILL)
		p.wait()
		// A child of berth that hasn't become the command yet ends with it.
		eventually(t, "the command runs, or nothing does", func() bool {
			procs := n.sh("cat /sys/fs/cgroup/berth/alloc-*/main/command/cgroup.procs 2>/dev/null | wc -l").ok()
			running := strings.TrimSpace(procs) != "0"
			return running == strings.Contains(p.stdout.String(), "started") || !running
		})
		if strings.Contains(p.stdout.String(), "started") {
			l := n.waitForLeases(1)[0]
			n.berth("release", "--force", l.ID).ok()
		}
		n.berth("alloc", "1", "--", "true").is(0, "", "")
	}
	n.checkClean(t)
}

// TestEmptyCgroups: an empty cgroup is removed after the berth alloc that created it has ended,
// whatever ledger that uses. It isn't removed earlier, because berth alloc may be about to enter
// it.
func TestEmptyCgroups(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "one-gpu")
	n.sh(`mkdir -p /sys/fs/cgroup/berth
		create() { mkdir -p /sys/fs/cgroup/berth/alloc-$1.$2.$3-$4/main/command; }
		start=$(cut -d' ' -f22 /proc/$$/stat) ns=$(stat -L -c %i /proc/$$/ns/pid)
		create $$ $start $ns live; create $$ $((start + 1)) $ns reused
		create 4194304 1 $ns ended; create 4194304 1 $((ns + 1)) elsewhere
		berth alloc 1 -- true || exit; ls -d /sys/fs/cgroup/berth/*/main | sed 's/.*-\(.*\).main/\1/' | sort`).
		is(0, "elsewhere\nlive\n", "")
	n.berth("alloc", "1", "--", "true").ok()
	for _, group := range n.list("/sys/fs/cgroup/berth") {
		if strings.HasSuffix(group, "-live") {
			t.Error("the cgroup of a creator that has ended is left")
		}
	}
	n.sh("rmdir /sys/fs/cgroup/berth/*/main/command /sys/fs/cgroup/berth/*/main /sys/fs/cgroup/berth/alloc-*").ok()
	n.checkClean(t)
}
