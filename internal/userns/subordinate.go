package userns

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Programs that set the maps of a user namespace. They are set-uid root, and check that the admin has given the ids to the user.
// Source: newuidmap(1), newgidmap(1).
const (
	newuidmap = "newuidmap"
	newgidmap = "newgidmap"
)

// Files with the subordinate ids that the admin has given to users. Source: subuid(5), subgid(5).
const (
	subuidFile = "/etc/subuid"
	subgidFile = "/etc/subgid"
)

// Create makes a user namespace in which this process's user is root, and the user's subordinate ids are the ids
// from 1 on. It returns nil if the user has no subordinate ids, newuidmap isn't installed, or no namespace can be made. login is
// the user's name, and lookUp returns the path of a program, "" if there is none.
func Create(ctx context.Context, login string, lookUp func(string) string) (namespace *os.File, err error) {
	maps, err := planMaps(login)
	if maps == nil || err != nil {
		return nil, err
	}
	programs := map[string]string{}
	for _, name := range []string{newuidmap, newgidmap, "cat"} {
		if programs[name] = lookUp(name); programs[name] == "" {
			return nil, nil //nolint:nilnil // documented above
		}
	}
	// The first process of the namespace waits until it has been opened: a process in it can't be started without maps.
	first := exec.CommandContext(ctx, programs["cat"])
	first.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, Pdeathsig: syscall.SIGKILL}
	stdin, err := first.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("make a user namespace: %w", err)
	}
	if err := first.Start(); err != nil {
		return nil, nil //nolint:nilnil,nilerr // Enter fails, too, and its caller explains that
	}
	defer func() {
		_ = stdin.Close() // cat ends
		_ = first.Wait()  // its exit code says nothing
	}()
	for name, m := range maps {
		args := append([]string{strconv.Itoa(first.Process.Pid)}, m.mapArguments()...)
		if out, err := exec.CommandContext(ctx, programs[name], args...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(out))
		}
	}
	return os.Open(fmt.Sprintf("/proc/%d/ns/user", first.Process.Pid))
}

// planMaps returns the maps of a user namespace with the user's subordinate ids by the programs that set them, nil if the user has
// none.
func planMaps(login string) (map[string]idMap, error) {
	uid := os.Geteuid()
	users, err := readSubordinateIDs(subuidFile, uid, login)
	if users == nil || err != nil {
		return nil, err
	}
	groups, err := readSubordinateIDs(subgidFile, uid, login)
	if groups == nil || err != nil {
		return nil, err
	}
	return map[string]idMap{
		newuidmap: withRoot(uint64(uid), users), newgidmap: withRoot(uint64(os.Getegid()), groups), //nolint:gosec // not negative
	}, nil
}

// withRoot returns a map of id 0 to root, and of the ids from 1 on to ranges, one after the other.
func withRoot(root uint64, ranges []idRange) idMap {
	m := idMap{{0, root, 1}}
	next := uint64(1)
	for _, r := range ranges {
		m = append(m, idRange{next, r.outside, r.size})
		next += r.size
	}
	return m
}

// mapArguments returns the arguments of newuidmap.
func (m idMap) mapArguments() (words []string) {
	for _, r := range m {
		for _, n := range []uint64{r.inside, r.outside, r.size} {
			words = append(words, strconv.FormatUint(n, 10))
		}
	}
	return words
}

// readSubordinateIDs returns a user's ranges of a file, nil if there are none.
func readSubordinateIDs(path string, uid int, login string) ([]idRange, error) {
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return parseSubordinateIDs(string(data), strconv.Itoa(uid), login), nil
}

// maxRanges bounds the ranges of a user. A map is written at once, and has less than a page then. Source: user_namespaces(7).
const maxRanges = 100

// parseSubordinateIDs returns the ranges of a user, who is named by the uid or the login name. It omits lines that it can't read, as
// newuidmap does, ranges that overlap an earlier one or have the user's own id, which
// the kernel refuses, and ranges that make the ids of the namespace too large for 32 bits.
func parseSubordinateIDs(text, uid, name string) (ranges []idRange) {
	total := uint64(1)
	for line := range strings.Lines(text) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) != 3 || f[0] != uid && f[0] != name {
			continue
		}
		first, err1 := strconv.ParseUint(f[1], 10, 32)
		size, err2 := strconv.ParseUint(f[2], 10, 32)
		if errors.Join(err1, err2) != nil || size == 0 || first+size >= 1<<32 || total+size >= 1<<32 || len(ranges) == maxRanges {
			continue
		}
		overlaps := func(r idRange) bool { return first < r.outside+r.size && r.outside < first+size }
		if own, err := strconv.ParseUint(uid, 10, 32); err != nil || overlaps(idRange{outside: own, size: 1}) || slices.ContainsFunc(ranges, overlaps) {
			continue
		}
		ranges = append(ranges, idRange{outside: first, size: size})
		total += size
	}
	return ranges
}
