package network

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
)

// waitUntil waits for a condition that another process brings about.
func waitUntil(t *testing.T, what string, is func() bool) {
	t.Helper()
	for range 500 {
		if is() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("never: %s", what)
}

// TestStopsForwarding: that ip_forward was switched off counts also if the gang's own interface forwards again already,
// because its rules are being restored.
func TestStopsForwarding(t *testing.T) {
	o := Options{Gang: "0123456789ab", Host: Host{Proc: t.TempDir()}}
	own := filepath.Join(o.Host.Proc, "sys/net", forwardingKey(InterfaceName(o.Gang)))
	testutil.Must(t, os.MkdirAll(filepath.Dir(own), 0o755))
	for _, tt := range []struct {
		own        string
		index      int32
		forwarding uint32
		want       bool
	}{
		{"1", -1, 0, true}, {"1", -1, 1, false}, {"1", 3, 0, false}, {"0", 3, 0, true}, {"0", 3, 1, false},
	} {
		testutil.Must(t, os.WriteFile(own, []byte(tt.own), 0o644))
		attributes := netlink.NewAttributeEncoder()
		attributes.Int32(1, tt.index)
		attributes.Uint32(2, tt.forwarding)
		data, err := attributes.Encode()
		testutil.Must(t, err)
		if got := o.stopsForwarding(netlink.Message{Data: append([]byte{unix.AF_INET, 0, 0, 0}, data...)}); got != tt.want {
			t.Errorf("%+v: %v", tt, got)
		}
	}
}

// When another program removes the rules, or drops forwarded packets: gangs reach the outside
// again, and nothing reaches gangs.
func TestKeepRules(t *testing.T) {
	r, a, b, na, nb := newTwoGangs(t)
	r.world.listen("198.51.100.1:80")
	b.listen("0.0.0.0:29500")
	cmd, out := r.child(nil, "keep", gangA, r.state, na.Gateway.String())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log("said: " + out.String())
		}
	})
	there := func() bool { return strings.Contains(r.leftovers(), "table inet berth") }
	for range 3 {
		testutil.Must(t, r.host.in(removeRules))
		waitUntil(t, "the rules are back", there)
	}
	if got := b.reach(port(nb.Address.Addr(), 29500)); got != nb.Address.Addr().String() {
		t.Errorf("itself: %q", got)
	}
	if got := a.reachClosed(port(nb.Address.Addr(), 29500)); got != closed {
		t.Errorf("the other: %q", got)
	}
	r.host.sh("iptables-nft-restore <<'END'\n" + docker + "END\n")
	waitUntil(t, "docker lets gangs out", func() bool { return strings.Contains(r.host.sh("iptables-nft -S DOCKER-USER"), "-o berth+") })
	if got := a.reach("198.51.100.1:80"); got != "203.0.113.2" {
		t.Errorf("the world: %q", got)
	}
	r.host.sh("iptables-nft -F DOCKER-USER")
	waitUntil(t, "docker lets gangs out again", func() bool { return strings.Contains(r.host.sh("iptables-nft -S DOCKER-USER"), "-o berth+") })
	for range 3 { // switches every interface off
		r.host.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv4.ip_forward=0")
		waitUntil(t, "the gangs' interfaces forward again", func() bool {
			return r.forwards(InterfaceName(gangA))+r.forwards(InterfaceName(gangB))+r.forwards("up0") == "111"
		})
	}
	if got := a.reach("198.51.100.1:80"); got != "203.0.113.2" {
		t.Errorf("the world after ip_forward was turned off: %q", got)
	}
	r.disconnect(gangA)
	r.disconnect(gangB)
	r.sweep()
	time.Sleep(3 * settleTime)
	if left := r.leftovers(); left != "" {
		t.Errorf("left:\n%s", left)
	}
}
