package sysfs

import (
	"cmp"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/smallfile"
)

// readGIDs lists those of a port's GIDs that are set, by index. The kernel gives no type
// and no network interface for an empty place of the table.
func readGIDs(port string) ([]gpu.GID, error) {
	names, err := smallfile.Names(filepath.Join(port, "gids"))
	if err != nil {
		return nil, err
	}
	var all []gpu.GID
	for _, name := range names {
		n, err := strconv.ParseUint(name, 10, 16)
		if err != nil {
			continue
		}
		text, err := readOptional(filepath.Join(port, "gids", name))
		if err != nil {
			return nil, err
		}
		if !isSet(text) {
			continue
		}
		g := gpu.GID{Index: int(n), GID: text}
		if g.Type, err = readOptional(filepath.Join(port, "gid_attrs/types", name)); err != nil {
			return nil, err
		}
		if g.Netdev, err = readOptional(filepath.Join(port, "gid_attrs/ndevs", name)); err != nil {
			return nil, err
		}
		all = append(all, g)
	}
	slices.SortFunc(all, func(a, b gpu.GID) int { return cmp.Compare(a.Index, b.Index) })
	return all, nil
}

// isSet reports whether a GID isn't an empty place of the table: all zero, or a subnet's
// prefix and nothing after it.
func isSet(gid string) bool {
	const prefix = len("fe80:0000:0000:0000:")
	return len(gid) > prefix && strings.Trim(gid[prefix:], "0:") != ""
}

// isGUID reports whether s is the GUID of a node, "b8ce:f603:00a1:d2f4". Virtual functions
// have one of zeros until the host gives them another.
func isGUID(s string) bool {
	parts := strings.Split(s, ":")
	return len(parts) == 4 && strings.Trim(s, "0:") != "" &&
		!slices.ContainsFunc(parts, func(p string) bool { return !isHex(p, 4, 4) })
}
