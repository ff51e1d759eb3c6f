package engine

import (
	"cmp"
	"path/filepath"
	"strings"

	"github.com/berth-gpu/berth/launcher/tasks"
)

// Address is the default address of containerd.
const Address = "/run/containerd/containerd.sock"

// Store returns the store for berth's records of an engine's tasks, below berth's own. Each socket
// address has a store of its own.
func Store(own tasks.Store, address string) tasks.Store {
	if address == "" {
		address = Address
	}
	place := strings.ReplaceAll(strings.Trim(filepath.Clean(address), "/"), "/", "-")
	own.Data = filepath.Join(cmp.Or(own.Data, "/var/lib/berth"), "containerd", place)
	own.State = filepath.Join(cmp.Or(own.State, "/run/berth"), "containerd", place)
	return own
}
