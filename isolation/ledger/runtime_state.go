package ledger

import (
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/runtimestate"
	"github.com/berth-gpu/berth/isolation/cgroup"
)

// What runtimes leave behind about a container is read as strangers' input: only
// regular files, with a limit, and nothing in it counts until it was compared
// with the process itself. Absent and unreadable are the same here: no claim.

const maxPIDFile = 64

// readClaims returns what the pid file and the runtime's state say of the init.
func readClaims(o Owner, h cgroup.Hierarchy) []claim {
	var claims []claim
	if c, ok := pidFileClaim(o.PIDFile); ok {
		claims = append(claims, c)
	}
	if o.RuntimeRoot == "" || o.Container == "" {
		return claims
	}
	for _, r := range runtimestate.Read(o.RuntimeRoot, o.Container) {
		c := claim{pid: r.PID, recorded: r.Start, own: r.CgroupPath}
		if path, ok := h.PathOf(r.CgroupDirs[h.Controller]); ok {
			c.own = path
		}
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
