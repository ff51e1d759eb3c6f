package network

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/smallfile"
)

// resolvConf is what a resolv.conf says.
type resolvConf struct {
	servers []netip.Addr
	others  []string // the other lines that mean something
}

// readHostResolvConf reads the host's. Where that names systemd-resolved's stub, which is on the
// loopback, the servers that it asks are named instead, unless they are unknown.
func (h Host) readHostResolvConf() (resolvConf, error) {
	r, err := readResolvConf(filepath.Join(h.Etc, "resolv.conf"))
	if err != nil || !r.namesStub() {
		return r, err
	}
	behind, err := readResolvConf(filepath.Join(h.Run, "systemd/resolve/resolv.conf"))
	if err != nil || len(behind.servers) == 0 || behind.namesStub() {
		return r, err
	}
	return behind, nil
}

// namesStub knows the addresses of systemd-resolved(8).
func (r resolvConf) namesStub() bool {
	return slices.Contains(r.servers, netip.MustParseAddr("127.0.0.53")) || slices.Contains(r.servers, netip.MustParseAddr("127.0.0.54"))
}

// readResolvConf reads a file as resolv.conf(5) says. One that isn't there says nothing.
func readResolvConf(path string) (resolvConf, error) {
	const most = 1 << 16
	data, err := smallfile.Read(path, most)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return resolvConf{}, err
	}
	return parseResolvConf(string(data)), nil
}

func parseResolvConf(text string) (r resolvConf) {
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		switch words[0] {
		case "nameserver":
			if a, err := netip.ParseAddr(words[1]); err == nil {
				r.servers = append(r.servers, a.Unmap())
			}
		case "search", "domain", "options", "sortlist":
			r.others = append(r.others, strings.Join(words, " "))
		}
	}
	return r
}

// isReachable says that a gang can ask a server itself.
func isReachable(a netip.Addr) bool { return a.Is4() && !a.IsLoopback() && !a.IsUnspecified() }

// reachableServers are the servers' addresses, which a gang must not have.
func (r resolvConf) reachableServers() (all []netip.Prefix) {
	for _, a := range r.servers {
		if isReachable(a) {
			all = append(all, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return all
}

// contentForGang is the file for the members of a gang, and the servers that only the host
// reaches; in the place of the first of them stands the gateway.
func (r resolvConf) contentForGang(gateway netip.Addr) (text []byte, upstream []netip.Addr) {
	for _, a := range r.servers {
		if !isReachable(a) {
			upstream = append(upstream, a)
			a = gateway
		}
		if a != gateway || len(upstream) == 1 {
			text = fmt.Appendf(text, "nameserver %s\n", a)
		}
	}
	for _, line := range r.others {
		text = append(text, line+"\n"...)
	}
	return text, upstream
}
