package network

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-gpu/berth/internal/testutil"
)

func TestResolver(t *testing.T) {
	for _, tt := range []struct {
		name, etc, behind string
		want, upstream    string
	}{
		{"plain", "# by hand\nsearch a.example b.example\nnameserver 192.0.2.53\nnameserver 192.0.2.54\noptions edns0\n", "", "nameserver 192.0.2.53\nnameserver 192.0.2.54\nsearch a.example b.example\noptions edns0\n", "[]"},
		{"systemd-resolved", "nameserver 127.0.0.53\noptions edns0 trust-ad\nsearch .\n", "nameserver 192.0.2.53\nsearch lan\n", "nameserver 192.0.2.53\nsearch lan\n", "[]"},
		{"systemd-resolved, its own file is away", "nameserver 127.0.0.53\nsearch lan\n", "", "nameserver 10.213.0.1\nsearch lan\n", "[127.0.0.53]"},
		{"systemd-resolved, without servers", "nameserver 127.0.0.53\n", "# none\n", "nameserver 10.213.0.1\n", "[127.0.0.53]"},
		{"systemd-resolved, before a dnsmasq", "nameserver 127.0.0.53\n", "nameserver 127.0.0.1\n", "nameserver 10.213.0.1\n", "[127.0.0.1]"},
		{"dnsmasq", "nameserver 127.0.0.1\n", "nameserver 192.0.2.99\n", "nameserver 10.213.0.1\n", "[127.0.0.1]"},
		{"two on the loopback, and another", "nameserver 127.0.0.1\nnameserver 192.0.2.53\nnameserver ::1\n", "", "nameserver 10.213.0.1\nnameserver 192.0.2.53\n", "[127.0.0.1 ::1]"},
		{"IPv6", "nameserver fe80::1%eth0\nnameserver 2001:db8::53", "", "nameserver 10.213.0.1\n", "[fe80::1%eth0 2001:db8::53]"},
		{"IPv4 in IPv6", "nameserver ::ffff:192.0.2.53\n", "", "nameserver 192.0.2.53\n", "[]"},
		{"all addresses", "nameserver 0.0.0.0\n", "", "nameserver 10.213.0.1\n", "[0.0.0.0]"},
		{"nonsense", "nameserver\nnameserver x\n;\nnameserver 192.0.2.53 # the one\n\x00\n", "", "nameserver 192.0.2.53\n", "[]"},
		{"nothing", "", "", "", "[]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			h := Host{Etc: filepath.Join(dir, "etc"), Run: filepath.Join(dir, "run")}
			testutil.Must(t, os.MkdirAll(filepath.Join(h.Run, "systemd/resolve"), 0o755))
			testutil.Must(t, os.Mkdir(h.Etc, 0o755))
			testutil.Must(t, os.WriteFile(filepath.Join(h.Etc, "resolv.conf"), []byte(tt.etc), 0o600))
			if tt.behind != "" {
				testutil.Must(t, os.WriteFile(filepath.Join(h.Run, "systemd/resolve/resolv.conf"), []byte(tt.behind), 0o600))
			}
			r, err := h.readHostResolvConf()
			testutil.Must(t, err)
			text, upstream := r.contentForGang(netip.MustParseAddr("10.213.0.1"))
			if string(text) != tt.want || fmt.Sprint(upstream) != tt.upstream {
				t.Errorf("%q, %v; want %q, %s", text, upstream, tt.want, tt.upstream)
			}
		})
	}
}

func FuzzResolver(f *testing.F) {
	f.Add("nameserver 127.0.0.1\nsearch a\n")
	f.Fuzz(func(t *testing.T, text string) {
		r := parseResolvConf(text)
		inside, upstream := r.contentForGang(netip.MustParseAddr("10.213.0.1"))
		again := parseResolvConf(string(inside))
		for _, a := range again.servers {
			if !isReachable(a) {
				t.Errorf("a gang is to ask %s", a)
			}
		}
		if len(again.others) != len(r.others) || (len(upstream) > 0) != (len(r.servers) > len(r.reachableServers())) {
			t.Errorf("%q became %q, %v", text, inside, upstream)
		}
	})
}
