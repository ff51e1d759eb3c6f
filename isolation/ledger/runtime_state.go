package ledger

import (
	"strconv"
	"strings"

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
	b, err := runtimestate.ReadFile(path, maxPIDFile)
	if err != nil {
		return claim{}, false
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	return claim{pid: pid}, err == nil && pid > 0
}
