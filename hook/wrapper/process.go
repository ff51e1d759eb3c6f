package wrapper

import (
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/isolation/ledger"
)

// alive says whether a process is still there and is the one that was meant. Of
// a process in another pid namespace nothing is known: it counts as alive.
func alive(p ledger.Process) bool {
	var ns unix.Stat_t
	if p.Namespace != 0 && unix.Stat("/proc/self/ns/pid", &ns) == nil && ns.Ino != p.Namespace {
		return true
	}
	stat, err := os.ReadFile("/proc/" + itoa(p.PID) + "/stat")
	if err != nil {
		return false
	}
	// The name in parentheses may hold anything; the fields after it are numbers.
	f := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(f) < 20 || f[0][0] == 'Z' || f[0][0] == 'X' {
		return false
	}
	start, err := strconv.ParseUint(string(f[19]), 10, 64)
	return err == nil && (p.Start == 0 || start == p.Start)
}

func itoa(n int) string { return strconv.Itoa(n) }
