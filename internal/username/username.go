// Package username finds the names of users.
package username

import (
	"context"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Find returns the name of a user, or the number of one without a name. If /etc/passwd lacks the user, Find runs
// getent: berth's programs are linked statically, and only the C library finds users of directory services.
func Find(uid int) string {
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

// Finder is [Find] with a memory: a process that serves many requests of the same users runs getent once for each. The zero
// value is ready for use, by several goroutines at once.
type Finder struct {
	mu    sync.Mutex
	known map[int]knownName
}

type knownName struct {
	name string
	at   time.Time
}

// A name is kept for keepFor, and maxKnown bounds the memory.
const (
	keepFor  = 10 * time.Minute
	maxKnown = 4096
)

// Find returns what the function [Find] does. The name may have changed in the last ten minutes.
func (f *Finder) Find(uid int) string {
	f.mu.Lock()
	known, ok := f.known[uid]
	f.mu.Unlock()
	if ok && time.Since(known.at) < keepFor {
		return known.name
	}
	name := Find(uid) // without the lock: a directory service may take a second
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.known == nil || len(f.known) >= maxKnown {
		f.known = map[int]knownName{}
	}
	f.known[uid] = knownName{name, time.Now()}
	return name
}
