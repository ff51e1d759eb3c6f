package guard

import "github.com/berth-gpu/berth/isolation/cgroup"

// Containers are the running containers of root's engines, as they were when they were listed.
type Containers struct {
	guard Guard
	all   []runningContainer
}

// ListContainers lists the running containers of root's engines. It reads the state of each.
func (g Guard) ListContainers() (Containers, error) {
	all, err := g.listRunning()
	return Containers{g, all}, err
}

// Find reports whether a cgroup belongs to one of the containers, and whether that container may open accelerators without
// a lease: the admin exempts it, or the guard is disabled. While the key of exemptions can't be read, no key exempts.
func (c Containers) Find(path string) (found, exempt bool) {
	for _, container := range c.all {
		if container.cgroup == "/" || !cgroup.IsWithin(path, container.cgroup) {
			continue
		}
		if c.guard.Disabled {
			return true, true
		}
		if spec := readBundleSpec(container.Bundle); spec != nil {
			exempt, _ = c.guard.IsExempt(spec, container.Bundle) // false after an error
		}
		return true, exempt
	}
	return false, false
}
