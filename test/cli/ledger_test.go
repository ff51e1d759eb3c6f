package cli

import (
	"os"
	"strings"
	"testing"
)

const ledgerPath = "/run/berth/ledger.json"

// TestDamagedLedger: all verbs that need it refuse an untrusted ledger with the reason; repair
// keeps the leases of live holders, and no device is leased twice.
func TestDamagedLedger(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "dgx-h100")
	alloc := n.start("berth", "alloc", "0,3", "--", "sleep", "1000")
	n.waitForLeases(1)
	run := n.start("berth", "run", "--name", "trainer", "--gpus", "1", image(), "sleep", "1000")
	n.waitForLeases(2)
	waiter := n.start("berth", "alloc", "--wait", "all", "--", "echo", "all mine")
	const waiting = "berth: waiting for all: 5 of 8 free; alloc sleep has GPU 0,3, run trainer has GPU 1\n"
	waiter.warns(waiting)
	const repair = "; berth repair rebuilds it from the running holders"
	const takeBack = "; berth repair takes its ownership back and rebuilds it from the running holders"
	for i, c := range []struct {
		name   string
		damage string // shell, in $L
		why    string
		hint   string
	}{
		{"appended to", "echo x >> $L", ledgerPath + ": ledger is corrupt: the checksum doesn't match: the file was cut or edited", repair},
		{"edited", "sed -i 's/trainer/Trainer/' $L", ledgerPath + ": ledger is corrupt: the checksum doesn't match: the file was cut or edited", repair},
		{"truncated", "truncate -s 100 $L", ledgerPath + ": ledger is corrupt: the header is missing or damaged", repair},
		{"empty", "truncate -s 0 $L", ledgerPath + ": ledger is corrupt: the file is empty", repair},
		{"garbage", "head -c 5000 /dev/urandom > $L", ledgerPath + ": ledger is corrupt: the header is missing or damaged", repair},
		{"a future version", `sed -i '1s/"version":1/"version":99/' $L`, ledgerPath + ": ledger was written by a newer version of berth: version 99, this one knows 1", "; install that version or a newer one"},
		{"another user's", "chown 65534 $L", ledgerPath + ": ledger could have been written by others: it belongs to user 65534", takeBack},
		{"writable by all", "chmod 666 $L", ledgerPath + ": ledger could have been written by others: its mode is 0666", takeBack},
		{"in a directory writable by all", "chmod 777 /run/berth", "/run/berth: ledger could have been written by others: its mode is 0777", takeBack},
		{"a link", "mv $L /run/x; ln -s /run/x $L", ledgerPath + ": ledger could have been written by others: it is a symbolic link", takeBack},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := n.as(t)
			n.sh("L=" + ledgerPath + "; " + c.damage).ok()
			line := "berth: " + c.why + c.hint
			if i == 0 {
				waiter.wait().is(125, "", waiting+line+"\n") // the waiting request has to get an error
			}
			n.berth("leases").fails(1, line)
			n.berth("gpus").fails(1, line)
			n.berth("release", "--force", "abc").fails(1, line)
			n.berth("run", "--gpus", "1", image(), "true").fails(125, line)
			n.berth("run", "--gpus", "1", "--wait=5s", image(), "true").fails(125, line)
			n.berth("alloc", "1", "true").fails(125, line)
			moved := "the damaged ledger is now " + ledgerPath + ".bad-STAMP\n"
			got := n.berth("repair")
			if normalize(got.stderr) != c.why+"; rebuilt with 2 leases\n"+moved || got.code != 0 {
				t.Errorf("repair: code %d, says\n%s", got.code, got.stderr)
			}
			n.stillHeld()
		})
	}
	alloc.signal(15)
	run.signal(15)
	alloc.wait().is(143, "", "")
	run.wait().is(143, "", "")
	n.sh("rm /run/berth/ledger.json.bad-*").ok()
	n.checkClean(t)
	n.berth("alloc", "all", "--", "true").ok()
}

// stillHeld: the leases of alloc (0 and 3) and run (another) are in force.
func (n *node) stillHeld() {
	n.t.Helper()
	held := map[string]bool{}
	for _, l := range n.waitForLeases(2) {
		for _, d := range l.Devices {
			held[d.Index] = true
		}
	}
	if len(held) != 3 || !held["0"] || !held["3"] {
		n.t.Errorf("held are %v", held)
	}
	got := strings.Split(strings.TrimSpace(n.berth("alloc", "5", "--", "sh", "-c", "echo $BERTH_DEVICES").ok()), ",")
	if len(got) != 5 {
		n.t.Errorf("of five that are free, leased are %v", got)
	}
	if six := n.berth("alloc", "6", "--", "true"); six.code != 75 {
		n.t.Errorf("six of five that are free: code %d, %s", six.code, six.stderr)
	}
}

// TestMissingLedger: removing the file removes no lease.
func TestMissingLedger(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "l40s-pcie")
	alloc := n.start("berth", "alloc", "3", "--", "sleep", "1000")
	n.waitForLeases(1)
	remove := func() { check(t, os.Remove(n.path(ledgerPath))) }
	remove()
	n.waitForLeases(1)
	n.berth("run", "--gpus", "2", image(), "true").fails(75,
		"berth: request 2: 2 asked, 1 of 4 free; held: GPU 0,2,3 by alloc sleep since TIME; wait for them with --wait, or see berth leases")
	remove()
	repaired := n.berth("repair")
	if repaired.stderr != ledgerPath+": ledger is corrupt: the file is missing; rebuilt with 1 lease\n" || !strings.Contains(repaired.ok(), "alloc sleep") {
		t.Errorf("repair says %s%s", repaired.stdout, repaired.stderr)
	}
	waiter := n.start("berth", "alloc", "--wait", "all", "--", "echo", "all mine")
	waiter.warns("waiting for all")
	remove()
	alloc.signal(15)
	alloc.wait()
	if got := waiter.wait().ok(); got != "all mine\n" {
		t.Errorf("the waiter printed %q", got)
	}
	n.checkClean(t)
}

// TestUnwritableEventLog: leases work without the event log, and berth reports that the log can't
// be written.
func TestUnwritableEventLog(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "dgx-h100")
	n.sh("rm -f /var/lib/berth/events.log; mkdir /var/lib/berth/events.log").ok()
	const warning = "berth: write event log: open /var/lib/berth/events.log: is a directory\n"
	n.berth("alloc", "1", "true").is(0, "", strings.Repeat(warning, 2)) // acquired, released
	n.berth("run", "--gpus", "1", image(), "true").is(0, "", strings.Repeat(warning, 2))
	n.sh("berth run -d --gpus 1 \"$IMAGE\" true >/dev/null").is(0, "", warning) // the monitor writes the release
}
