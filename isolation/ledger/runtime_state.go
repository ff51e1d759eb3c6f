package ledger

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/isolation/cgroup"
)

// What runtimes leave behind about a container is read as strangers' input: only
// regular files, with a limit, and nothing in it counts until it was compared
// with the process itself. Absent and unreadable are the same here: no claim.

const (
	maxPIDFile = 64
	maxState   = 4 << 20 // runc writes the whole configuration into its state
)

// readClaims returns what the pid file and the runtime's state say of the init.
func readClaims(o Owner, h cgroup.Hierarchy) []claim {
	var claims []claim
	if c, ok := pidFileClaim(o.PIDFile); ok {
		claims = append(claims, c)
	}
	if o.RuntimeRoot == "" || o.Container == "" {
		return claims
	}
	dir := filepath.Join(o.RuntimeRoot, o.Container)
	if c, ok := runcClaim(dir, h); ok {
		claims = append(claims, c)
	}
	if c, ok := crunClaim(dir); ok {
		claims = append(claims, c)
	}
	return claims
}

func pidFileClaim(path string) (claim, bool) {
	b, ok := readSmall(path, maxPIDFile)
	if !ok {
		return claim{}, false
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	return claim{pid: pid}, err == nil && pid > 0
}

// runcClaim reads state.json, as runc 1.0 to 1.3 write it.
func runcClaim(dir string, h cgroup.Hierarchy) (claim, bool) {
	b, ok := readSmall(filepath.Join(dir, "state.json"), maxState)
	if !ok {
		return claim{}, false
	}
	var s struct {
		PID     int               `json:"init_process_pid"`
		Start   uint64            `json:"init_process_start"`
		Cgroups map[string]string `json:"cgroup_paths"` // by controller, directories
	}
	if json.Unmarshal(b, &s) != nil || s.PID <= 0 {
		return claim{}, false
	}
	c := claim{pid: s.PID, recorded: s.Start}
	if path, ok := h.PathOf(s.Cgroups[h.Controller]); ok {
		c.own = path
	}
	return c, true
}

// crunClaim reads status, as crun 0.x and 1.x write it.
func crunClaim(dir string) (claim, bool) {
	b, ok := readSmall(filepath.Join(dir, "status"), maxState)
	if !ok {
		return claim{}, false
	}
	var s struct {
		PID    int    `json:"pid"`
		Start  uint64 `json:"process-start-time"`
		Cgroup string `json:"cgroup-path"`
	}
	if json.Unmarshal(b, &s) != nil || s.PID <= 0 {
		return claim{}, false
	}
	c := claim{pid: s.PID, recorded: s.Start}
	if s.Cgroup != "" {
		c.own = filepath.Clean("/" + s.Cgroup)
	}
	return c, true
}

// readSmall reads a regular file of at most limit bytes, without following a
// link in the last element and without ever blocking.
func readSmall(path string, limit int64) ([]byte, bool) {
	f, err := os.OpenFile(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, false
	}
	defer func() { _ = f.Close() }() // opened for reading
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		return nil, false
	}
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	return b, err == nil && int64(len(b)) <= limit
}
