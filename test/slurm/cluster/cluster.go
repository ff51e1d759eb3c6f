// Package cluster starts Slurm in a simulated GPU server of test/rack: munge, a controller and a compute node's daemon, all of Debian's
// packages, with ordinary users.
//
// Slurm knows nothing of GPUs there: they are berth's to allocate. It keeps jobs by cgroups (version 2), as on a server with systemd, but without
// limits, because test machines lack the controllers. The compute node has more CPUs in Slurm's configuration than the machine, so that jobs of
// a usual size start.
//
// All daemons run in one server now. What a second compute node needs is another rack.Host, a network between both, an entry in
// the list of nodes, and the first one's key of munge.
package cluster

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/berth-gpu/berth/test/rack"
)

// Options describe a cluster.
type Options struct {
	// Suite is the Debian suite that Slurm comes from: "trixie" (24.11). There are trees of "forky" (26.05, without PMIx), which hasn't been
	// tried, and of "bookworm" (22.05), whose daemons don't start with these settings.
	Suite string
	// Simnode and Share are those of rack.Options. The cluster writes a file into Share.
	Simnode, Share string
	// Settings are further lines of slurm.conf.
	Settings []string
}

// Cluster is a Slurm that runs. Its host is where users log in, too.
type Cluster struct {
	*rack.Host
}

// node is a server in Slurm's configuration.
type node struct{ name, address string }

// Start starts a cluster, and returns when its nodes take jobs. The caller stops it.
func Start(o Options) (*Cluster, error) {
	tree, err := rack.Tree("slurm-" + o.Suite)
	if err != nil {
		return nil, err
	}
	host, err := rack.Start(rack.Options{Tree: tree, Cgroup: "v2", Simnode: o.Simnode, Share: o.Share, Key: "slurm-" + o.Suite})
	if err != nil {
		return nil, err
	}
	c := &Cluster{host}
	if err := c.startDaemons(o); err != nil {
		return nil, errors.Join(fmt.Errorf("start Slurm of %s: %w", o.Suite, err), c.Stop())
	}
	return c, nil
}

func (c *Cluster) startDaemons(o Options) error {
	nodes := []node{{name: "node0", address: "10.77.0.1"}}
	if err := c.LeaveRoot(); err != nil {
		return err
	}
	files := map[string]string{"/etc/slurm/slurm.conf": formatConfig(nodes, o.Settings), "/etc/slurm/cgroup.conf": cgroupConfig}
	for name, text := range files {
		if err := os.WriteFile(c.Path(name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	library := filepath.Join(o.Share, "unified.so")
	if err := compileLibrary(library); err != nil {
		return err
	}
	if _, err := c.runCommand("sh", "-ec", startDaemons, nodes[0].name, nodes[0].address, library); err != nil {
		return err
	}
	return c.waitForNodes(len(nodes))
}

//go:embed testdata/unified.c
var unified string

// compileLibrary makes the library of testdata/unified.c, for the C library of bookworm and later ones.
func compileLibrary(path string) error {
	cmd := exec.Command("cc", "-O1", "-shared", "-fPIC", "-o", path, "-x", "c", "-")
	cmd.Stdin = strings.NewReader(unified)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("compile unified.c: %w: %s", err, out)
	}
	return nil
}

// formatConfig returns slurm.conf. The first node has the controller.
func formatConfig(nodes []node, settings []string) string {
	lines := []string{
		"ClusterName=test", fmt.Sprintf("SlurmctldHost=%s(%s)", nodes[0].name, nodes[0].address), "SlurmUser=slurm",
		"StateSaveLocation=/var/spool/slurmctld", "SlurmdSpoolDir=/var/spool/slurmd", "SlurmctldLogFile=/var/log/slurm/slurmctld.log",
		"SlurmdLogFile=/var/log/slurm/slurmd.log", "SlurmdParameters=config_overrides", "ProctrackType=proctrack/cgroup", "TaskPlugin=task/cgroup",
		"SelectType=select/cons_tres", "SelectTypeParameters=CR_CPU", "KillWait=2", "ReturnToService=2",
		"SchedulerParameters=batch_sched_delay=0,sched_min_interval=0", "PartitionName=all Nodes=ALL Default=YES OverTimeLimit=0",
	}
	for _, n := range nodes {
		lines = append(lines, fmt.Sprintf("NodeName=%s NodeAddr=%s CPUs=128 RealMemory=1000", n.name, n.address))
	}
	return strings.Join(append(lines, settings...), "\n") + "\n"
}

const cgroupConfig = "CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\nConstrainCores=no\nConstrainRAMSpace=no\nConstrainDevices=no\n"

// startDaemons makes the server node $0 with the address $1, and starts the daemons, which become background processes when they
// serve. Slurm needs an address that isn't lo's; the other end of the pair of interfaces isn't used. $2 is the library of testdata/unified.c. slurmd has a cgroup of its own: in the one of commands from outside are processes
// that aren't of its PID namespace.
const startDaemons = `hostname "$0"
echo "$1 $0" >>/etc/hosts
ip link add eth0 type veth peer name eth0-peer
ip addr add "$1/24" dev eth0
ip link set eth0 up
ip link set eth0-peer up
mkdir -p /run/munge /var/spool/slurmctld /var/spool/slurmd /var/log/slurm
chown munge: /run/munge
chown slurm: /var/spool/slurmctld /var/log/slurm
setpriv --reuid munge --regid munge --init-groups munged
slurmctld
mkdir /sys/fs/cgroup/slurmd.service
echo $$ >/sys/fs/cgroup/slurmd.service/cgroup.procs
LD_PRELOAD=$2 slurmd`

// waitForNodes waits until a number of nodes are idle.
func (c *Cluster) waitForNodes(count int) error {
	var out string
	for range 300 {
		out, _ = c.runCommand("sinfo", "--noheader", "--Node", "--format=%T") // the controller may not answer yet
		if strings.Count(out, "idle\n") == count {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	logs, _ := c.runCommand("sh", "-c", "tail -n 20 /var/log/slurm/*.log")
	return fmt.Errorf("nodes don't become idle: %q: %s", out, logs)
}

// runCommand runs a command of root's to its end.
func (c *Cluster) runCommand(words ...string) (string, error) {
	out, err := c.Command(words...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%.40q: %w: %s", words, err, out)
	}
	return string(out), nil
}

// AddUser makes an ordinary user, who has subordinate ids and a home directory in a file system of its own.
func (c *Cluster) AddUser(name string, uid int) error {
	_, err := c.runCommand("sh", "-ec", `mountpoint -q /home || mount -t tmpfs -o mode=755 tmpfs /home
useradd --uid "$1" --user-group --create-home --shell /bin/bash "$0"`, name, fmt.Sprint(uid))
	return err
}

// AsUser returns the words of a command line that a user of the cluster runs in their home directory, as after a login.
func AsUser(name string, words ...string) []string {
	home := "/home/" + name
	return append([]string{
		"setpriv", "--reuid", name, "--regid", name, "--init-groups", "env", "-C", home, "HOME=" + home, "USER=" + name, "LOGNAME=" + name,
		"SHELL=/bin/bash", "LANG=C.UTF-8", "PATH=/usr/local/bin:/usr/bin:/bin",
	}, words...)
}
