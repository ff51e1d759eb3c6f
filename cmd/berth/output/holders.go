package output

import (
	"context"
	"fmt"
	"os/exec"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// FormatHolder prints the owner of a lease for people.
func FormatHolder(o ledger.Owner) string {
	name := o.Name
	if name == "" {
		name = abbreviateID(o.Container)
	}
	if name == "" {
		name = fmt.Sprintf("pid %d", o.Process.PID)
	}
	return o.EntryPoint + " " + name
}

// JoinIndexes prints the indexes of devices, see [ListIndexes].
func JoinIndexes(devices []gpu.Device) string { return strings.Join(ListIndexes(devices), ",") }

// ListIndexes returns the indexes of devices. NICs come last and once each: the lease of a gang names them once per
// part.
func ListIndexes(devices []gpu.Device) []string {
	list := []string{}
	var nics []string
	for _, d := range devices {
		switch {
		case !d.IsNIC():
			list = append(list, d.Index)
		case !slices.Contains(nics, d.Index):
			nics = append(nics, d.Index)
		}
	}
	return append(list, nics...)
}

// FindUserName returns the name of a user. If /etc/passwd lacks the user, it runs getent:
// berth is linked statically, and only the C library finds users of directory services.
func FindUserName(uid int) string {
	id := strconv.Itoa(uid)
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "getent", "passwd", id).Output()
	if name, _, found := strings.Cut(string(out), ":"); err == nil && found && name != "" {
		return name
	}
	return id
}
