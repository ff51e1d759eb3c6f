package faults

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// TestNamespaces: a holder that lives isn't taken for one that has ended, from whatever namespace berth looks
// at it: the kernel shifts start times in a time namespace, pids mean other processes in a pid namespace, and
// in a container the mounted cgroups may begin elsewhere.
func TestNamespaces(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"v1", "v2"} {
		t.Run("cgroup "+version, func(t *testing.T) {
			t.Parallel()
			n, err := shared.Start("one-gpu", version)
			rig.Must(t, err)
			for _, ns := range []struct {
				name string
				into []string
			}{
				{"later boot", []string{"unshare", "--time", "--boottime=-1", "--fork"}},
				{"earlier boot", []string{"unshare", "--time", "--boottime=100000", "--fork"}},
				{"pids", []string{"unshare", "--pid", "--fork", "--mount-proc"}},
				{"pids and cgroups", []string{"unshare", "--pid", "--cgroup", "--fork", "--mount-proc"}},
				{"pids, and a part of the cgroups", []string{"unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", bindOwnCgroup, "sh"}},
			} {
				inside := func(words ...string) rig.Said {
					all := append(append([]string{}, ns.into...), words...)
					return n.Run(t, n.Command(all[0], all[1:]...))
				}
				t.Run(ns.name+", holder outside", func(t *testing.T) {
					end := holdGPU(t, n, []string{"sh", "-c", joinCgroup, "sh"})
					if said := inside(n.Berth, "alloc", "1", "true"); said.Code == 0 || !strings.Contains(said.Err, "0 of 1 free") && !strings.Contains(said.Err, "hides when") {
						t.Errorf("%+v", said)
					}
					end()
				})
				t.Run(ns.name+", holder inside", func(t *testing.T) {
					end := holdGPU(t, n, ns.into)
					if said := n.Run(t, n.Command(n.Berth, "alloc", "1", "true")); said.Code != 75 {
						t.Errorf("%+v", said)
					}
					end()
				})
			}
		})
	}
}

// TestTaskInTimeNamespace: the monitor of a task is known from another time namespace.
func TestTaskInTimeNamespace(t *testing.T) {
	t.Parallel()
	n, err := shared.Start("one-gpu", "v2")
	rig.Must(t, err)
	n.Do(t, n.Berth, "run", "-d", "--name", "train", rig.ImagePath(t, "busybox"), "sleep", "1000")
	before := n.Do(t, "sh", "-c", "cat /var/lib/berth/tasks/*/run.json")
	for _, boot := range []string{"--boottime=-1", "--boottime=100000"} {
		if said := n.Do(t, "unshare", "--time", boot, n.Berth, "ps"); !strings.Contains(said, " up ") {
			t.Errorf("%s: %s", boot, said)
		}
	}
	if after := n.Do(t, "sh", "-c", "cat /var/lib/berth/tasks/*/run.json"); after != before {
		t.Errorf("the task got another monitor: %s, before %s", after, before)
	}
	n.Do(t, "unshare", "--time", "--boottime=100000", n.Berth, "rm", "-f", "train")
}

// joinCgroup enters a cgroup, as a session or a service has one, and becomes the command.
const joinCgroup = `set -e
for tree in /sys/fs/cgroup /sys/fs/cgroup/devices; do
	[ -e $tree/cgroup.procs ] || continue
	mkdir -p $tree/namespaces-test
	echo 0 >$tree/namespaces-test/cgroup.procs
done
exec "$@"`

// bindOwnCgroup mounts a cgroup of its own where the hierarchy is, as docker does on version 1 without a cgroup
// namespace, and becomes the command.
const bindOwnCgroup = `set -e
for tree in /sys/fs/cgroup /sys/fs/cgroup/devices; do
	[ -e $tree/cgroup.procs ] || continue
	mkdir -p $tree/namespaces-test-$$
	echo 0 >$tree/namespaces-test-$$/cgroup.procs
	mount --bind $tree/namespaces-test-$$ $tree
done
exec "$@"`

// holdGPU has a process hold the GPU until end is called. into is the command that starts it.
func holdGPU(t *testing.T, n *rig.Node, into []string) (end func()) {
	t.Helper()
	all := append(append([]string{}, into...), n.Berth, "alloc", "1", "sh", "-c", "echo held; read end")
	cmd := n.Command(all[0], all[1:]...)
	in, err := cmd.StdinPipe()
	rig.Must(t, err)
	out, err := cmd.StdoutPipe()
	rig.Must(t, err)
	var said strings.Builder
	cmd.Stderr = &said
	rig.Must(t, cmd.Start())
	var word string
	if _, err := fmt.Fscanln(out, &word); err != nil || word != "held" {
		_ = in.Close()
		_ = cmd.Wait()
		t.Fatalf("%v: %v: %s", cmd.Args, err, said.String())
	}
	return func() {
		_ = in.Close()
		_ = cmd.Wait() // the shell reads no line
		n.Do(t, n.Berth, "alloc", "1", "true")
	}
}
