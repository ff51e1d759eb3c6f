package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const snapshot = "/run/berth/inventory.json"

// TestStaleMIG: every verb that needs the layout notices a new one.
func TestStaleMIG(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "dgx-a100-mig")
	holder := n.start("berth", "alloc", "device=1:0", "--", "sleep", "1000")
	held := n.waitForRunning(1)[0].Devices[0].UUID
	n.control("mig", "1", "3g.40gb")
	n.berth("leases").is(0, `LEASE         GPU  REQUEST     HOLDER       USER  FOR  STATE
ID  1:0  device=1:0  alloc sleep  root  AGE   running

ID: MIG slice 1:0 (`+held+`) is gone
`, "")
	// The hardware of the lease is still in use on that GPU, so no slice of the GPU can be leased.
	const busy = "; held: GPU 1:0 by alloc sleep since TIME; wait for them with --wait, or see berth leases"
	n.berth("alloc", "device=1", "--", "true").fails(75, "berth: request device=1: 1 asked, 0 of 1 free"+busy)
	n.control("mig", "1", "off")
	n.berth("alloc", "device=1", "--", "true").fails(75, "berth: request device=1: 1 asked, 0 of 1 free"+busy)
	n.berth("alloc", "all", "--", "sh", "-c", "echo $BERTH_DEVICES").fails(75, "berth: request all: 3 asked, 2 of 3 free"+busy)
	holder.signal(syscall.SIGTERM)
	holder.wait()
	n.berth("alloc", "device=1", "--", "true").is(0, "", "")
	n.checkClean(t)
}

// TestStale: the next command sees a changed machine in the inventory.
func TestStale(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "one-gpu")
	old := n.list("/var/lib/berth/driver")
	if len(old) != 1 {
		t.Fatalf("driver directories: %v", old)
	}
	t.Run("driver", func(t *testing.T) {
		n := n.as(t)
		n.control("driver", "560.35.03")
		n.berth("run", "--gpus", "1", image(), "sh", "-c", "ls /usr/local/nvidia/lib* | grep libcuda.so.5").is(0, "libcuda.so.560.35.03\n", "")
		if v := n.gpus().Driver.Version; v != "560.35.03" {
			t.Errorf("the inventory has driver %s", v)
		}
		if now := n.list("/var/lib/berth/driver"); len(now) != 2 {
			t.Errorf("driver directories were %v, are %v", old, now)
		}
	})
	t.Run("uvm's major", func(t *testing.T) {
		n := n.as(t)
		n.control("uvm-major", "444")
		n.berth("run", "--gpus", "1", image(), "stat", "-c", "%t", "/dev/nvidia-uvm").is(0, "1bc\n", "")
	})
	t.Run("driver files that a container changed", func(t *testing.T) {
		n := n.as(t)
		n.sh("echo changed | tee -a /var/lib/berth/driver/*/all/files/bin/nvidia-smi").ok()
		for range 2 {
			n.berth("run", "--gpus", "1", image(), "grep", "-c", "changed", "/usr/bin/nvidia-smi").is(1, "0\n", "")
		}
	})
	damages := []struct{ name, script string }{
		{"deleted", "rm $S"},
		{"garbage", "head -c 3000 /dev/urandom > $S"},
		{"truncated", "truncate -s 500 $S"},
		{"empty", "truncate -s 0 $S"},
		{"edited", "sed -i 's/H100/H200/' $S"},
		{"another user's", "chown 65534 $S"},
		{"writable by all", "chmod 666 $S"},
		{"a link", "mv $S /run/elsewhere; ln -s /run/elsewhere $S"},
		{"a pipe", "rm $S; mkfifo $S"},
		{"without driver files", "rm -r /var/lib/berth/driver"},
	}
	for _, c := range damages {
		t.Run(c.name, func(t *testing.T) {
			n := n.as(t)
			n.sh("S=" + snapshot + "; " + c.script).ok()
			n.berth("run", "--gpus", "h100", image(), "sh", "-c", "ls /usr/local/nvidia/lib* | grep -c libcuda.so.1").is(0, "1\n", "")
			fi, err := os.Lstat(n.path(snapshot))
			if err != nil || !fi.Mode().IsRegular() || fi.Mode().Perm() != 0o644 {
				t.Errorf("the snapshot isn't a new file: %v %v", fi, err)
			}
		})
	}
	n.checkClean(t)
}

// TestRenewedOnce: if many commands find the snapshot stale at once, one of them runs discovery.
func TestRenewedOnce(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "dgx-h100")
	check(t, os.Remove(n.path(snapshot)))
	written := n.watch("/run/berth")
	var all []*process
	for range 16 {
		all = append(all, n.start("berth", "gpus", "--json"))
	}
	first := ""
	for _, p := range all {
		out := p.wait().ok()
		if first == "" {
			first = out
		}
		if out != first {
			t.Error("two of them saw different nodes")
		}
	}
	n.berth("discover", "--if-stale", "-q").is(0, "", "")
	if got := written(); got != 1 {
		t.Errorf("the snapshot was written %d times", got)
	}
	n.berth("discover", "-q").is(0, "", "")
	if got := written(); got != 1 {
		t.Errorf("discover has written the snapshot %d times", got)
	}
	n.checkClean(t)
}

// watch returns a function that counts the snapshot's replacements since its last call.
func (n *node) watch(dir string) func() int {
	n.t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	check(n.t, err)
	n.t.Cleanup(func() { _ = unix.Close(fd) })
	_, err = unix.InotifyAddWatch(fd, n.path(dir), unix.IN_MOVED_FROM)
	check(n.t, err)
	return func() int {
		buf := make([]byte, 1<<16)
		size, err := unix.Read(fd, buf)
		if err != nil {
			return 0 // nothing to read
		}
		// The events name the temporary files, which differ: the kernel merges equal ones.
		return bytes.Count(buf[:size], []byte(filepath.Base(snapshot)))
	}
}

// TestBareNodes: discover makes the nodes that the driver leaves to user space.
func TestBareNodes(t *testing.T) {
	t.Parallel()
	n := newNode(t, "dgx-a100-mig", options{bare: true})
	if got := n.sh("ls /dev | grep -c nvidia"); got.stdout != "0\n" {
		t.Fatalf("the node isn't bare: %s", got.stdout)
	}
	n.berth("discover", "-q").is(0, "", "")
	for _, name := range []string{"nvidia0", "nvidia7", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-caps/nvidia-cap1", "nvidia-caps/nvidia-cap2"} {
		fi, err := os.Stat(n.path("/dev/" + name))
		if err != nil || fi.Mode().Type() != os.ModeDevice|os.ModeCharDevice {
			t.Errorf("/dev/%s: %v %v", name, fi, err)
		}
	}
	n.berth("run", "--gpus", "1g.10gb", image(), "sh", "-c", "ls /dev/nvidia-caps | wc -l").is(0, "2\n", "")
	n.berth("run", "--gpus", "a100", image(), "sh", "-c", "ls /dev | grep -cx 'nvidia[0-9]'").is(0, "1\n", "")
	n.checkClean(t)
}

// TestDriverRoot: a driver below a prefix needs one line of configuration.
func TestDriverRoot(t *testing.T) {
	t.Parallel()
	n := newNode(t, "one-gpu", options{driverRoot: "/run/nvidia/driver"})
	n.sh("mkdir -p /etc/berth && printf '[host]\\ndriver_root = \"/run/nvidia/driver\"\\n' > /etc/berth/config.toml").ok()
	n.berth("discover").is(0, "simulated-one-gpu: driver 550.163.01, 1 GPU; snapshot in /run/berth/inventory.json\n", "")
	n.berth("run", "--gpus", "1", image(), "sh", "-c", "ls /usr/local/nvidia/lib* | grep -c libcuda.so.1").is(0, "1\n", "")
	got := n.berth("run", "--gpus", "1", debian(), "nvidia-smi").ok()
	if !strings.Contains(got, "NVIDIA H100 80GB HBM3") {
		t.Errorf("nvidia-smi says %s", got)
	}
	n.checkClean(t)
}
