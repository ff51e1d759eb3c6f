package spec

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// EtcFiles returns the names of the files in /etc that are written for each container.
func EtcFiles() []string { return []string{"hostname", "hosts", "resolv.conf"} }

// WriteEtcFiles writes a container's own [EtcFiles] into dir, and returns them by their
// destinations. The container may write to them. name is the container's name.
func (s Settings) WriteEtcFiles(dir, name string) (map[string]string, error) {
	hostname := s.EffectiveHostname(name)
	contents := map[string]string{
		"hostname":    hostname + "\n",
		"hosts":       "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n",
		"resolv.conf": "",
	}
	if s.Network == "host" {
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
	contents["hosts"] = s.appendHosts(contents["hosts"], hostname)
	contents["resolv.conf"] = s.Resolver.applyTo(contents["resolv.conf"])
	files := map[string]string{}
	for name, text := range contents {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return nil, fmt.Errorf("write task's file: %w", err)
		}
		// The container's users must be able to read the file, whatever the caller's umask.
		if err := os.Chmod(path, 0o644); err != nil {
			return nil, fmt.Errorf("write task's file: %w", err)
		}
		files["/etc/"+name] = path
	}
	return files, nil
}

// EffectiveHostname is the container's hostname as programs in it see it. name is the
// container's name.
func (s Settings) EffectiveHostname(name string) string {
	if s.UTS == "host" {
		if hosts, err := os.Hostname(); err == nil {
			return hosts
		}
	}
	return cmp.Or(s.Hostname, name)
}

// appendHosts adds the container's own names and Settings.Hosts to the text of /etc/hosts.
func (s Settings) appendHosts(hosts, hostname string) string {
	if hosts != "" && !strings.HasSuffix(hosts, "\n") {
		hosts += "\n"
	}
	names := hostname
	if s.Domainname != "" {
		names = hostname + "." + s.Domainname + " " + hostname
	}
	hosts += "127.0.1.1\t" + names + "\n"
	for _, line := range s.Hosts {
		hosts += line + "\n"
	}
	return hosts
}

// applyTo replaces the lines of a resolv.conf for which r has values.
func (r Resolver) applyTo(conf string) string {
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
