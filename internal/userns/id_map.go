package userns

import (
	"os"
	"strconv"
	"strings"
)

// idRange maps consecutive ids of a user namespace to ids of its parent.
type idRange struct{ inside, outside, size uint64 }

// idMap is the map of a user namespace's users or groups. Source: user_namespaces(7), "User and group ID mappings".
type idMap []idRange

// parseIDMap parses the content of a uid_map or gid_map. It omits lines that aren't ranges.
func parseIDMap(text string) (m idMap) {
	for line := range strings.Lines(text) {
		var r idRange
		f := strings.Fields(line)
		if len(f) != 3 {
			continue
		}
		valid := true
		for i, to := range []*uint64{&r.inside, &r.outside, &r.size} {
			n, err := strconv.ParseUint(f[i], 10, 32)
			*to, valid = n, valid && err == nil
		}
		if valid {
			m = append(m, r)
		}
	}
	return m
}

// isIdentity reports whether the map is that of the first user namespace.
func (m idMap) isIdentity() bool {
	return len(m) == 1 && m[0] == idRange{0, 0, 1<<32 - 1}
}

// outerID returns the id in the parent of an id inside.
func (m idMap) outerID(id uint64) (uint64, bool) {
	for _, r := range m {
		if id >= r.inside && id-r.inside < r.size {
			return r.outside + id - r.inside, true
		}
	}
	return 0, false
}

// IsInitial reports whether the content of a uid_map is that of the machine's first user namespace, whose root is root of the
// machine.
func IsInitial(uidMap string) bool { return parseIDMap(uidMap).isIdentity() }

// HasUser reports whether this process's user namespace has a user.
func HasUser(uid uint32) bool { return mapsID("/proc/self/uid_map", uid) }

// HasGroup reports whether this process's user namespace has a group.
func HasGroup(gid uint32) bool { return mapsID("/proc/self/gid_map", gid) }

// mapsID reports whether the map in a file of procfs has an id.
func mapsID(path string, id uint32) bool {
	data, err := os.ReadFile(path)
	if err != nil {
		return true // a kernel without user namespaces
	}
	_, found := parseIDMap(string(data)).outerID(uint64(id))
	return found
}
