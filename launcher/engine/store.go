package engine

import (
	"path/filepath"
	"strings"

	"github.com/berth-gpu/berth/launcher/tasks"
)

// Address is where containerd usually listens.
const Address = "/run/containerd/containerd.sock"

// Store is where what berth keeps of an engine's tasks is, below where its own are: the
// engines of several sockets have nothing to do with each other.
func Store(own tasks.Store, address string) tasks.Store {
	if address == "" {
		address = Address
	}
	place := strings.ReplaceAll(strings.Trim(filepath.Clean(address), "/"), "/", "-")
	own.Data = filepath.Join(or(own.Data, "/var/lib/berth"), "containerd", place)
	own.State = filepath.Join(or(own.State, "/run/berth"), "containerd", place)
	return own
}

func or(value, otherwise string) string {
	if value == "" {
		return otherwise
	}
	return value
}
