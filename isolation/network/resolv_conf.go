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

// resolvConf is the content of a resolv.conf(5).
type resolvConf struct {
	servers []netip.Addr
	others  []string // the lines with other keywords
}

// readHostResolvConf reads the host's file. If that names systemd-resolved's stub, which
// gangs can't reach, it reads the file with the servers that the stub asks, provided that
// it has any.
func (h Host) readHostResolvConf() (resolvConf, error) {
	r, err := readResolvConf(filepath.Join(h.Etc, "resolv.conf"))
	if err != nil || !r.hasStub() {
		return r, err
	}
	behind, err := readResolvConf(filepath.Join(h.Run, "systemd/resolve/resolv.conf"))
	if err != nil || len(behind.servers) == 0 || behind.hasStub() {
		return r, err
	}
	return behind, nil
}

// hasStub reports whether one of the servers is the stub of systemd-resolved(8).
func (r resolvConf) hasStub() bool {
	return slices.Contains(r.servers, netip.MustParseAddr("127.0.0.53")) || slices.Contains(r.servers, netip.MustParseAddr("127.0.0.54"))
}

// readResolvConf reads a resolv.conf(5). A missing file is an empty one.
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

// isReachable reports whether a gang can ask a server itself.
func isReachable(a netip.Addr) bool { return a.Is4() && !a.IsLoopback() && !a.IsUnspecified() }

// reachableServers are the servers that gangs ask themselves, whose addresses no gang may
// get.
func (r resolvConf) reachableServers() (all []netip.Prefix) {
	for _, a := range r.servers {
		if isReachable(a) {
			all = append(all, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return all
}

// contentForGang returns the resolv.conf of a gang's ranks. upstream are the servers that only the
// host reaches; the file has the gateway in the place of the first of them.
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
