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
		"hostname":    t.hostname() + "\n",
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
	contents["hosts"] = withName(contents["hosts"], t.names()) + lines(t.o.Hosts)
	contents["resolv.conf"] = t.o.Resolver.replace(contents["resolv.conf"])
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

// names are those that the task's own address has.
func (t *task) names() string {
	name := t.hostname()
	if t.o.Domainname == "" {
		return name
	}
	return name + "." + t.o.Domainname + " " + name
}

// hostname is the task's, as programs in it see it.
func (t *task) hostname() string {
	if t.o.UTS == "host" {
		if name, err := os.Hostname(); err == nil {
			return name
		}
	}
	return or(t.o.Hostname, t.plan.name)
}

func lines(all []string) string {
	text := ""
	for _, line := range all {
		text += line + "\n"
	}
	return text
}

// replace puts what was asked for in the place of the host's lines of its kind.
func (r Resolver) replace(conf string) string {
	for _, kind := range []struct {
		word  string
		given []string
		each  bool // in a line of its own
	}{{"nameserver", r.Servers, true}, {"search", r.Search, false}, {"options", r.Options, false}} {
		if len(kind.given) == 0 {
			continue
		}
		kept := ""
		for line := range strings.Lines(conf) {
			f := strings.Fields(line)
			if len(f) > 0 && (f[0] == kind.word || f[0] == "domain" && kind.word == "search") {
				continue
			}
			kept += line
		}
		if kept != "" && !strings.HasSuffix(kept, "\n") {
			kept += "\n"
		}
		if !kind.each {
			kept += kind.word + " " + strings.Join(kind.given, " ") + "\n"
		}
		for _, server := range kind.given {
			if kind.each {
				kept += kind.word + " " + server + "\n"
			}
		}
		conf = kept
	}
	return conf
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
