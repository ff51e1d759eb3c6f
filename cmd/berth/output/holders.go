package output

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/internal/username"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// FormatHolder prints the owner of a lease for people.
func FormatHolder(o ledger.Owner) string {
	name := o.Name
	if name == "" {
		name = abbreviateID(o.Container)
	}
	if name == "" && o.Process.PID == 0 { // the broker shows only the user, or not even that
		return OrDash(o.EntryPoint)
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

// FormatUser prints the user of a lease for people: "alice", or "alice (root)" for a lease that root took for alice, and
// "alice (sudo)" if only sudo has told so.
func FormatUser(o ledger.Owner) string {
	switch {
	case o.Login == 0:
		return FindUserName(o.UID)
	case o.LoginFrom == process.LoginSudo:
		return cmp.Or(o.LoginUser, FindUserName(o.Login)) + " (sudo)"
	}
	return cmp.Or(o.LoginUser, FindUserName(o.Login)) + " (root)"
}

// FindUserName returns the name of a user, see [username.Find]. A negative number is a user who isn't shown.
func FindUserName(uid int) string {
	if uid < 0 {
		return "-"
	}
	return username.Find(uid)
}
