package launcher

import (
	"fmt"

	"github.com/berth-gpu/berth/launcher/tasks"
)

// checkName fails for a gang's name of which those of its ranks get too long.
func (o GangOptions) checkName(name string) error {
	var last string
	for _, r := range o.Ranks {
		if member := (tasks.Member{Role: r.Role, Index: r.Index}).Name(); len(member) > len(last) {
			last = member
		}
	}
	if most := tasks.MaxName - len("."+last); len(name) > most {
		return fmt.Errorf("name %q: this gang's can be %d letters long at most, and not %d: its ranks are called by it (NAME.%s), in %d letters",
			name, most, len(name), last, tasks.MaxName)
	}
	return nil
}
