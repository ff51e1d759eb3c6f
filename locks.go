package berth

import "path/filepath"

// Locks returns the files and directories that berth's processes lock. A process holds such
// a lock for a short time only. The paths need not exist.
func (c Config) Locks() []string {
	return []string{
		filepath.Join(c.State, "ledger.lock"),
		filepath.Join(c.State, "discover.lock"),
		filepath.Join(c.State, "network.lock"),
		c.inspectionPath(),
		filepath.Join(c.State, "units"),
		filepath.Join(c.State, "exec"),
		filepath.Join(c.Data, "driver.lock"),
		filepath.Join(c.Data, "driver", ".bound", "lock"),
		filepath.Join(c.Data, "shared.lock"),
		filepath.Join(c.Data, "setup", ".lock"),
		filepath.Join(c.Data, "tasks"),
		filepath.Join(c.Data, "names"),
		filepath.Join(c.Data, "images", "sha256"),
		filepath.Join(c.Data, "images", "sha384"),
		filepath.Join(c.Data, "images", "sha512"),
	}
}
