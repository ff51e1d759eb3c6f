package launcher

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// files writes the task's own copies of what a host tells its programs about
// names. The container may write to them.
func (t *task) files() (map[string]string, error) {
	contents := map[string]string{
		"hostname":    t.plan.name + "\n",
		"hosts":       "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n",
		"resolv.conf": "",
	}
	if t.o.Network == "host" {
		for _, name := range []string{"hosts", "resolv.conf"} {
			data, err := os.ReadFile(filepath.Join("/etc", name))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("copy the host's file: %w", err)
			}
			contents[name] = string(data)
		}
	}
	contents["hosts"] = withName(contents["hosts"], t.plan.name)
	binds := map[string]string{}
	for name, text := range contents {
		path := t.place.in("files/" + name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return nil, fmt.Errorf("write task's file: %w", err)
		}
		// The mask of the caller must not keep it from the container's users.
		if err := os.Chmod(path, 0o644); err != nil {
			return nil, fmt.Errorf("write task's file: %w", err)
		}
		binds["/etc/"+name] = path
	}
	return binds, nil
}

// withName makes the task's hostname resolve to itself.
func withName(hosts, name string) string {
	if hosts != "" && !strings.HasSuffix(hosts, "\n") {
		hosts += "\n"
	}
	return hosts + "127.0.1.1\t" + name + "\n"
}

// thermalPaths tell about what other tasks compute; see GHSA-6fw5-f8r9-fgfm.
// Each is a mount, so only those that exist are named. To glob for them would read
// the directory of each of some hundred CPUs.
func thermalPaths(cpus string) []string {
	entries, err := os.ReadDir(cpus)
	if err != nil {
		return nil // then a container has no such directory to look into
	}
	var paths []string
	for _, e := range entries {
		if n, ok := strings.CutPrefix(e.Name(), "cpu"); !ok || strings.Trim(n, "0123456789") != "" {
			continue
		}
		path := filepath.Join(cpus, e.Name(), "thermal_throttle")
		if _, err := os.Lstat(path); err == nil {
			paths = append(paths, path)
		}
	}
	return paths
}
