package ociruntime

import (
	"fmt"
	"os"
	"path/filepath"
)

// DeleteWithoutRuntime removes a container of runc whose processes have all ended without running runc,
// which takes a quarter of a short task's time. All that runc does for such a container is to remove its cgroup, which is left
// to the caller, and its state directory. Source: libcontainer/state_linux.go, destroy.
//
// It returns false and changes nothing if the runtime has to be called: it isn't runc, or the container
// has poststop hooks. spec is the path of the container's config.json.
func (r Runtime) DeleteWithoutRuntime(id, spec string) (done bool, err error) {
	if r.Name() != "runc" || mayHaveHooks(spec, "poststop") {
		return false, nil
	}
	if err := os.RemoveAll(filepath.Join(r.Root, id)); err != nil {
		return false, fmt.Errorf("delete container: %w", err)
	}
	return true, nil
}
