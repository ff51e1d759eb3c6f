package rootfs

import (
	"fmt"
	"os"
	"slices"
)

// AddGroups appends groups to have, without duplicates. names are names of the image's own /etc/group, or
// numbers.
func AddGroups(root *os.File, have []uint32, names []string) ([]uint32, error) {
	if len(names) == 0 {
		return have, nil
	}
	group, err := readAccounts(root, "/etc/group")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		id, err := findGroup(group, name)
		if err != nil {
			return nil, fmt.Errorf("--group-add: %w", err)
		}
		if !slices.Contains(have, id) {
			have = append(have, id)
		}
	}
	return have, nil
}
