package tasks

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

// Gang is the part of a record that only gangs have: tasks that start, fail and restart together.
// The only process of the gang itself holds the namespaces that the ranks share; it is the Init of
// the gang's Life.
type Gang struct {
	// Ranks are the ids of the gang's tasks, by rank.
	Ranks []string `json:"ranks"`
	// Names are those of the ranks inside the gang, by rank: "infer-1".
	Names []string `json:"names"`
	// Network is "private", "rdma", "none" or "host".
	Network string `json:"network"`
	// Holder is the program that holds the namespaces.
	Holder string `json:"holder"`
	// Stores are the key-value stores in which Horovod's ranks find each other, and Server the program
	// that serves one.
	Stores []GangStore `json:"stores,omitempty"`
	Server string      `json:"server,omitempty"`
	// Ports are leased for a gang in the host's network, so that no other gang uses them.
	Ports GangPorts `json:"ports,omitzero"`
	// Viewer is the berth run in the foreground with which the gang ends; zero for a detached gang.
	Viewer Process `json:"viewer,omitzero"`
	// Shm is the size of /dev/shm in bytes; 0 means half of the machine's memory.
	Shm int64 `json:"shm,omitempty"`
}

// GangStore is a store at a port, with the number of ranks that meet in each scope.
type GangStore struct {
	Port   int            `json:"port"`
	Scopes map[string]int `json:"scopes"`
}

// GangPorts is a range of Count ports that begins at First.
type GangPorts struct {
	First int `json:"first"`
	Count int `json:"count"`
}

// Member is the part of a record that only ranks have.
type Member struct {
	Gang  string `json:"gang"` // the gang's id
	Role  string `json:"role"`
	Index int    `json:"index"` // in its role
	Rank  int    `json:"rank"`  // in the gang
	// Sees are the devices in the rank's container, the rank's own among them.
	Sees []string `json:"sees,omitempty"`
	// NetworkFirst means that the gang's network must exist before the container is created.
	NetworkFirst bool `json:"networkFirst,omitempty"`
}

// Name returns the rank's name inside its gang: "infer-1".
func (m Member) Name() string { return m.Role + "-" + strconv.Itoa(m.Index) }

// Ranks returns the existing tasks of a gang, by rank.
func (s Store) Ranks(g Gang) ([]Task, error) {
	var all []Task
	for _, id := range g.Ranks {
		t, err := s.Task(id)
		if errors.Is(err, fs.ErrNotExist) {
			continue // being created or removed
		}
		if err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	return all, nil
}

// findRank finds "GANG.ROLE-N", where GANG is a word for Find. ok is false if the word has another
// form, or there is no such gang.
func (s Store) findRank(word string) (t Task, ok bool, err error) {
	dot := strings.LastIndexByte(word, '.')
	if dot <= 0 {
		return Task{}, false, nil
	}
	gang, err := s.Find(word[:dot])
	if err != nil || gang.Gang == nil {
		return Task{}, false, nil //nolint:nilerr // the word isn't the name of a rank
	}
	for i, name := range gang.Gang.Names {
		if name != word[dot+1:] || i >= len(gang.Gang.Ranks) {
			continue
		}
		t, err = s.Task(gang.Gang.Ranks[i])
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("task %q: %w", word, ErrNotFound)
		}
		return t, true, err
	}
	return Task{}, true, fmt.Errorf("task %q: %w: the ranks of %s are %s", word, ErrNotFound, gang.Name, strings.Join(gang.Gang.Names, ", "))
}

// GangOf returns the id of the gang of which a task is a rank, or else the task's own.
func (s Store) GangOf(id string) string {
	if r, err := s.Record(id); err == nil && r.Member != nil {
		if _, err := s.Record(r.Member.Gang); err == nil {
			return r.Member.Gang
		}
	}
	return id
}
