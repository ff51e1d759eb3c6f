package faults

import (
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/test/rig"
)

// startApart returns a server with a network of its own, and an interface up0.
func startApart(t *testing.T, name string) server {
	t.Helper()
	n := shared.Once(t, "apart "+name, func() (*rig.Node, error) { return shared.StartApart("one-gpu", "v2") })
	s := server{n, "runc"}
	sh(t, s, "ip link set lo up; ip link show up0 2>/dev/null || ip link add up0 type veth peer name w0; ip link set w0 up; ip link set up0 up")
	return s
}

// sh runs a line of the shell on the server.
func sh(t *testing.T, s server, line string) string {
	t.Helper()
	got := s.Run(t, s.Command("sh", "-c", line))
	if got.Code != 0 {
		t.Fatalf("%s: %+v", line, got)
	}
	return got.Out
}

// TestForwardingTurnedOff: when 1 and then 0 is written to ip_forward, which switches
// every interface off, the interfaces that a running gang needs forward again.
func TestForwardingTurnedOff(t *testing.T) {
	s := startApart(t, "forwarding")
	sh(t, s, "ip addr replace 203.0.113.2/24 dev up0; ip route replace default via 203.0.113.1; sysctl -qw net.ipv4.ip_forward=1")
	gang := strings.TrimSpace(sh(t, s, s.Berth+" run --runtime runc -d -n 2 "+rig.ImagePath(t, "busybox")+" sleep 1000"))
	t.Cleanup(func() { sh(t, s, s.Berth+" rm -f "+gang) })
	const switches = "cat /proc/sys/net/ipv4/conf/all/forwarding /proc/sys/net/ipv4/conf/up0/forwarding /proc/sys/net/ipv4/conf/berth[0-9a-f]*/forwarding"
	sh(t, s, "sysctl -qw net.ipv4.ip_forward=0")
	now := ""
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if now = strings.Join(strings.Fields(sh(t, s, switches)), ""); now == "011" {
			return
		}
	}
	t.Errorf("all interfaces, up0 and the gang's forward %s", now)
}

// TestGangOnIPv6Host: a gang on a host with a default route of IPv6 alone runs, and berth
// says that it reaches nothing outside; doctor says so as well.
func TestGangOnIPv6Host(t *testing.T) {
	s := startApart(t, "ipv6")
	sh(t, s, "ip -6 addr replace fd00::2/64 dev up0 nodad; ip -6 route replace default via fd00::1")
	const says = "this host has only an IPv6 default route"
	run := func(network string) rig.Said {
		return s.Run(t, s.Command(s.Berth, "run", "--runtime", "runc", "-n", "2", "--network", network, rig.ImagePath(t, "busybox"), "true"))
	}
	if got := run("private"); got.Code != 0 || strings.Count(got.Err, says) != 1 {
		t.Errorf("a private network: %+v", got)
	}
	if got := run("none"); got.Code != 0 || strings.Contains(got.Err, says) {
		t.Errorf("no network: %+v", got)
	}
	if got := s.Run(t, s.Command(s.Berth, "doctor")); !strings.Contains(strings.Join(strings.Fields(got.Out), " "), "gangs reach nothing outside") {
		t.Errorf("doctor: %+v", got)
	}
}
