package network

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/testutil"
)

// docker is dockerd 28's table filter, as iptables-save prints it.
const docker = `*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:DOCKER - [0:0]
:DOCKER-BRIDGE - [0:0]
:DOCKER-CT - [0:0]
:DOCKER-FORWARD - [0:0]
:DOCKER-ISOLATION-STAGE-1 - [0:0]
:DOCKER-ISOLATION-STAGE-2 - [0:0]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-FORWARD
-A DOCKER ! -i docker0 -o docker0 -j DROP
-A DOCKER-BRIDGE -o docker0 -j DOCKER
-A DOCKER-CT -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A DOCKER-FORWARD -j DOCKER-CT
-A DOCKER-FORWARD -j DOCKER-ISOLATION-STAGE-1
-A DOCKER-FORWARD -j DOCKER-BRIDGE
-A DOCKER-FORWARD -i docker0 -j ACCEPT
-A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2
-A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP
COMMIT
`

// older is dockerd 20's table, with a rule of the admin's.
const older = `*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:DOCKER - [0:0]
:DOCKER-ISOLATION-STAGE-1 - [0:0]
:DOCKER-ISOLATION-STAGE-2 - [0:0]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-ISOLATION-STAGE-1
-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -o docker0 -j DOCKER
-A FORWARD -i docker0 ! -o docker0 -j ACCEPT
-A FORWARD -i docker0 -o docker0 -j ACCEPT
-A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2
-A DOCKER-ISOLATION-STAGE-1 -j RETURN
-A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP
-A DOCKER-ISOLATION-STAGE-2 -j RETURN
-A DOCKER-USER -d 198.51.100.66/32 -j DROP
-A DOCKER-USER -j RETURN
COMMIT
`

func TestOtherFirewalls(t *testing.T) {
	const ufw = "*filter\n:INPUT DROP [0:0]\n:FORWARD DROP [0:0]\n:OUTPUT ACCEPT [0:0]\nCOMMIT\n"
	const rejecting = "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n-A FORWARD -j REJECT --reject-with icmp-host-prohibited\nCOMMIT\n"
	const open = "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n-A FORWARD -s 192.0.2.7/32 -j DROP\nCOMMIT\n"
	for _, tt := range []struct {
		name, program, rules string
		added                int
	}{
		{"docker 28", "iptables-nft", docker, 2},
		{"docker 28, the older half", "iptables-legacy", docker, 2},
		{"docker 20", "iptables-nft", older, 2},
		{"a policy of DROP", "iptables-nft", ufw, 2},
		{"a rejecting end", "iptables-legacy", rejecting, 2},
		{"nothing closed", "iptables-nft", open, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.world.listen("198.51.100.1:80")
			r.world.sh("ip addr add 198.51.100.66/32 dev lo")
			r.world.listen("198.51.100.66:80")
			inner := newSpace(t)
			r.linkTo(inner, "docker0", "172.17.0.1/24", "172.17.0.2/24")
			r.host.sh("ip route del 172.17.0.0/24; ip link del docker0; ip link add docker0 type bridge; ip addr add 172.17.0.1/24 dev docker0; ip link set cdocker0 master docker0; ip link set docker0 up; ip link show docker0")
			inner.sh("ip link set lo up; ip route add default via 172.17.0.1")
			inner.listen("172.17.0.2:80")
			restore := strings.Replace(tt.program, "iptables", "iptables-restore", 1)
			restore = strings.Replace(strings.Replace(restore, "iptables-restore-nft", "iptables-nft-restore", 1), "iptables-restore-legacy", "iptables-legacy-restore", 1)
			r.host.sh("sysctl -qw net.ipv4.ip_forward=1; " + restore + " <<'END'\n" + tt.rules + "END\n")
			before := r.host.sh(tt.program + " -S")
			a, _ := r.connect(gangA)
			during := r.host.sh(tt.program + " -S")
			b, _ := r.connect(gangB)
			if again := r.host.sh(tt.program + " -S"); again != during || strings.Count(during, "berth+") != tt.added {
				t.Errorf("with a gang:\n%swith two:\n%s", during, again)
			}
			for name, s := range map[string]*space{"a": a, "b": b} {
				if got := s.reach("198.51.100.1:80"); got != "203.0.113.2" {
					t.Errorf("gang %s: %q", name, got)
				}
			}
			if got := a.reachClosed("172.17.0.2:80"); tt.added > 0 && got != closed {
				t.Errorf("a container of docker's: %q", got)
			}
			if got := a.reachClosed("198.51.100.66:80"); strings.Contains(tt.rules, "198.51.100.66") && got != closed {
				t.Errorf("what the admin forbids: %q", got)
			}
			r.disconnect(gangA)
			r.disconnect(gangB)
			r.sweep()
			if after := r.host.sh(tt.program + " -S"); after != before {
				t.Errorf("after:\n%s\nbefore:\n%s", after, before)
			}
		})
	}
}

// On a host that drops by default, gangs can query their relay.
func TestRelayThroughFirewall(t *testing.T) {
	f := parseFilterTable("-P INPUT DROP\n-P FORWARD ACCEPT\n-A INPUT -i lo -j ACCEPT\n")
	var got []string
	for _, words := range f.missingRules([]string{"eth0"}, true) {
		got = append(got, strings.Join(words, " "))
	}
	want := "-I INPUT 1 -i berth+ -p udp -m udp --dport 53 -j ACCEPT\n-I INPUT 2 -i berth+ -p tcp -m tcp --dport 53 -j ACCEPT"
	if strings.Join(got, "\n") != want {
		t.Errorf("%s", strings.Join(got, "\n"))
	}
	if more := f.missingRules([]string{"eth0"}, false); more != nil {
		t.Errorf("%q", more)
	}
}

// A program that lists rules in other words than it was given gets each rule once.
func TestRulesInOtherWords(t *testing.T) {
	r := newRig(t)
	r.host.sh("iptables-nft -P FORWARD DROP")
	dir := t.TempDir()
	script := "#!/bin/sh\ncase \"$*\" in *-S*) exec iptables-nft \"$@\" | sed 's/-j ACCEPT/-j  ACCEPT/'; exit ;; esac\nexec iptables-nft \"$@\"\n"
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "iptables"), []byte(script), 0o755))
	r.files.Programs = []string{dir}
	r.connect(gangA)
	r.connect(gangB)
	if text := r.host.sh("iptables-nft -S FORWARD"); strings.Count(text, "berth+") != 2 {
		t.Errorf("%s", text)
	}
	r.disconnect(gangA)
	r.disconnect(gangB)
	r.sweep()
	if text := r.host.sh("iptables-nft -S FORWARD"); text != "-P FORWARD DROP\n" {
		t.Errorf("%s", text)
	}
}
