package faults

import (
	"bytes"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/test/rig"
)

// TestLostLedger: what runs keeps its GPUs when the state directory was removed, or the configuration names
// another one. No GPU is leased before the ledger was rebuilt, and then none that is held. Until then no verb shows a GPU
// as free.
func TestLostLedger(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"v1", "v2"} {
		for name, lose := range map[string]string{
			"removed": "rm -rf /run/berth",
			"another": "mkdir -p /etc/berth; echo 'state = \"/run/other\"' >>/etc/berth/config.toml",
		} {
			t.Run(name+" "+version, func(t *testing.T) {
				t.Parallel()
				n, err := shared.Start("dgx-h100", version)
				rig.Must(t, err)
				n.Do(t, n.Berth, "run", "-d", "--gpus", "2", "--name", "train", rig.ImagePath(t, "busybox"), "sleep", "1000")
				end := holdGPU(t, n, nil)
				before := leasedDevices(n.Leases(t))
				isRefused := func() {}
				if name == "removed" { // a request that waits at another directory waits on
					isRefused = waitInVain(t, n)
				}
				n.Do(t, "sh", "-c", lose)
				isRefused()

				const advice = "; berth repair rebuilds it from the running holders\n"
				for _, words := range [][]string{{"release", "--force", "train"}, {"leases"}, {"leases", "--json"}, {"gpus"}, {"info"}} {
					said := n.Run(t, n.Command(n.Berth, words...))
					if said.Code != 1 || said.Out != "" || !strings.HasPrefix(said.Err, "berth: the ledger is lost: ") || !strings.HasSuffix(said.Err, advice) {
						t.Errorf("berth %q: %+v", words, said)
					}
				}
				said := n.Run(t, n.Command(n.Berth, "alloc", "1", "true"))
				if said.Code != 125 || !strings.Contains(said.Err, "berth: the ledger is lost: ") || !strings.HasSuffix(said.Err, advice) {
					t.Errorf("alloc: %+v", said)
				}
				if said := n.Run(t, n.Command(n.Berth, "doctor")); !strings.Contains(said.Out, "the ledger is lost: ") {
					t.Errorf("doctor: %+v", said)
				}
				n.Do(t, "sh", "-c", n.Berth+" discover") // which closes devices to those without a lease
				if said := n.Run(t, n.Command(n.Berth, "repair")); said.Code != 0 || !strings.Contains(said.Err, "; rebuilt with 2 leases\n") {
					t.Errorf("repair: %+v", said)
				}
				if after := leasedDevices(n.Leases(t)); after != before {
					t.Errorf("leased are %s, before %s", after, before)
				}
				said = n.Run(t, n.Command(n.Berth, "alloc", "6", "true"))
				if said.Code != 75 || !strings.Contains(said.Err, "5 of 8 free") {
					t.Errorf("alloc 6: %+v", said)
				}
				n.Do(t, n.Berth, "alloc", "5", "true")
				n.Do(t, n.Berth, "rm", "-f", "train")
				end()
				n.Do(t, n.Berth, "alloc", "8", "true")
			})
		}
	}
}

// TestLostLedgerOfRuntime: a container is found again also if its runtime's state directory is none of those that
// engines use by default, as with docker's --exec-root or ctr's --runc-root.
func TestLostLedgerOfRuntime(t *testing.T) {
	t.Parallel()
	for _, runtime := range []string{"runc", "crun"} {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			n, err := shared.Start("dgx-h100", "v2")
			rig.Must(t, err)
			s := server{n, runtime}
			s.create(t, "wrapper", "elsewhere-"+runtime, true)
			before := leasedDevices(s.Leases(t))
			s.Do(t, "rm", "-rf", "/run/berth")
			if said := s.Run(t, s.Command(s.Berth, "alloc", "1", "true")); said.Code != 125 || !strings.Contains(said.Err, "berth: the ledger is lost: ") {
				t.Errorf("alloc: %+v", said)
			}
			s.Do(t, s.Berth, "repair")
			if after := leasedDevices(s.Leases(t)); after != before {
				t.Errorf("leased are %s, before %s", after, before)
			}
		})
	}
}

// TestLostLedgerOfCommands: what a command of berth alloc holds is known whatever it does to its environment and its
// namespaces, and no command gets more than it had.
func TestLostLedgerOfCommands(t *testing.T) {
	t.Parallel()
	n, err := shared.Start("dgx-h100", "v2")
	rig.Must(t, err)
	var commands []*exec.Cmd
	hold := func(count int, words ...string) {
		cmd := n.Command(n.Berth, append([]string{"alloc", fmt.Sprint(count), "--"}, words...)...)
		out, err := cmd.StdoutPipe()
		rig.Must(t, err)
		rig.Must(t, cmd.Start())
		commands = append(commands, cmd)
		var word string
		if _, err := fmt.Fscanln(out, &word); err != nil || word != "held" {
			t.Fatalf("%v: %q, %v", words, word, err)
		}
	}
	wait := []string{"sh", "-c", "echo held; exec sleep 1000"}
	all := n.Do(t, "sh", "-c", n.Berth+" gpus --json | grep -o 'GPU-[-0-9a-f]*' | sort -u | paste -sd ,")
	hold(1, append([]string{"env", "LARGE=" + strings.Repeat("x", 1<<16)}, wait...)...)
	hold(1, append([]string{"env", "-i", "unshare", "--mount"}, wait...)...)
	hold(1, append([]string{"setpriv", "--reuid", "4711", "--clear-groups", "env", "BERTH_DEVICES=" + all}, wait...)...)
	hold(3, append([]string{n.Berth, "run", "--gpus", "1", rig.ImagePath(t, "busybox")}, wait...)...)
	before := leasedDevices(n.Leases(t))
	n.Do(t, "rm", "-rf", "/run/berth")
	if said := n.Run(t, n.Command(n.Berth, "repair")); said.Code != 0 || !strings.Contains(said.Err, "; rebuilt with 4 leases\n") {
		t.Errorf("repair: %+v", said)
	}
	if after := leasedDevices(n.Leases(t)); after != before {
		t.Errorf("leased are %s, before %s", after, before)
	}
	for _, cmd := range commands {
		rig.Must(t, cmd.Process.Signal(unix.SIGTERM))
		_ = cmd.Wait() // it was ended
	}
	n.Do(t, n.Berth, "alloc", "--wait=1m", "8", "true")
}

// TestUnknownHolder: while a container runs whose devices the node no longer has, a lost ledger isn't rebuilt, for
// its devices can come back. The error names it and the way out.
func TestUnknownHolder(t *testing.T) {
	t.Parallel()
	n, err := shared.Start("dgx-h100", "v2")
	rig.Must(t, err)
	for _, name := range []string{"known", "unknown"} {
		n.Do(t, n.Berth, "run", "-d", "--gpus", "1", "--name", name, rig.ImagePath(t, "busybox"), "sleep", "1000")
	}
	n.Do(t, "sh", "-c", `cd /var/lib/berth/tasks/$(`+n.Berth+` inspect unknown | sed -n 's/^ *"id": "\([0-9a-f]*\)",/\1/p' | head -n 1)/bundle &&
		sed -i 's|\("path":"/dev/nvidia\)[0-9]*\(","type":"c","major":195,"minor":\)[0-9]*|\177\277|' config.json && grep -q nvidia77 config.json && rm -rf /run/berth`)
	if said := n.Run(t, n.Command(n.Berth, "alloc", "1", "true")); said.Code != 125 || !strings.Contains(said.Err, "berth: the ledger is lost: ") {
		t.Errorf("alloc: %+v", said)
	}
	said := n.Run(t, n.Command(n.Berth, "repair"))
	if said.Code == 0 || !strings.Contains(said.Err, "device node /dev/nvidia77 belongs to no GPU of this machine; end what this names (berth rm -f") {
		t.Errorf("repair: %+v", said)
	}
	n.Do(t, n.Berth, "rm", "-f", "unknown")
	if said := n.Run(t, n.Command(n.Berth, "repair")); said.Code != 0 || !strings.Contains(said.Err, "; rebuilt with 1 lease\n") {
		t.Errorf("repair: %+v", said)
	}
	n.Do(t, n.Berth, "rm", "-f", "known")
	n.Do(t, n.Berth, "alloc", "8", "true")
}

// waitInVain starts a request that waits. The returned function expects that it was refused
// for the loss of the ledger.
func waitInVain(t *testing.T, n *rig.Node) (refused func()) {
	t.Helper()
	var errs bytes.Buffer
	cmd := n.Command(n.Berth, "alloc", "--wait=1h", "7", "true")
	cmd.Stderr = &errs
	rig.Must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // it may have ended
	for !strings.Contains(n.Do(t, n.Berth, "leases"), "waiting, ") {
		time.Sleep(10 * time.Millisecond)
	}
	return func() {
		if _ = cmd.Wait(); cmd.ProcessState.ExitCode() != 125 || !strings.Contains(errs.String(), "the ledger is lost: ") {
			t.Errorf("the request that waited: exit code %d, %s", cmd.ProcessState.ExitCode(), &errs)
		}
	}
}

// leasedDevices are the UUIDs, in order.
func leasedDevices(leases []rig.Lease) string {
	var all []string
	for _, l := range leases {
		for _, d := range l.Devices {
			all = append(all, d.UUID)
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}
