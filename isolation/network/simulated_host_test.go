package network

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
)

// space is a network namespace. It lasts as long as its file is open or a process is in it.
type space struct {
	t    testing.TB
	file *os.File
}

func newSpace(t testing.TB) *space {
	t.Helper()
	s := &space{t: t}
	own, err := os.Open("/proc/thread-self/ns/net")
	testutil.Must(t, err)
	defer own.Close()
	testutil.Must(t, RunInNamespace(own, func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		s.file, err = os.Open("/proc/thread-self/ns/net")
		return err
	}))
	t.Cleanup(func() { s.file.Close() })
	return s
}

// in calls f on a thread that is in the namespace.
func (s *space) in(f func() error) error { return RunInNamespace(s.file, f) }

// sh runs a line of the shell in the namespace.
func (s *space) sh(line string) string {
	s.t.Helper()
	out, err := s.try(line)
	if err != nil {
		s.t.Fatalf("%s: %v\n%s", line, err, out)
	}
	return out
}

func (s *space) try(line string) (out string, err error) {
	err = s.in(func() error {
		data, err := exec.Command("sh", "-c", line).CombinedOutput()
		out = string(data)
		return err
	})
	return out, err
}

// listen serves TCP at an address: it tells each client the client's address.
func (s *space) listen(address string) {
	s.t.Helper()
	testutil.Must(s.t, s.in(func() error {
		l, err := net.Listen("tcp4", address)
		if err != nil {
			return err
		}
		s.t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				fmt.Fprint(c, c.RemoteAddr().(*net.TCPAddr).IP)
				c.Close()
			}
		}()
		return nil
	}))
}

// reach connects to a server of listen, and returns the address that the server has seen.
func (s *space) reach(address string) string {
	const patience = 30 * time.Second // the machine may have much to do
	return s.dial(address, patience)
}

// closed is the result of reach for an address that can't be reached.
const closed = "unreachable"

// reachClosed is reach for an address that should be closed; it returns at once if it isn't.
func (s *space) reachClosed(address string) string { return s.dial(address, time.Second) }

func (s *space) dial(address string, patience time.Duration) (said string) {
	_ = s.in(func() error {
		said = closed
		c, err := net.DialTimeout("tcp4", address, patience)
		if err != nil {
			return nil
		}
		defer c.Close()
		buf := make([]byte, 100)
		n, _ := c.Read(buf)
		said = string(buf[:n])
		return nil
	})
	return said
}

// rig is a host with an uplink (203.0.113.2) to the outside ("world"), where 203.0.113.1 is the
// router and 198.51.100.1 is some server.
type rig struct {
	t           testing.TB
	host, world *space
	state       string
	files       Host
}

func newRig(t testing.TB) *rig {
	t.Helper()
	testutil.NeedRoot(t)
	if t, ok := t.(*testing.T); ok {
		t.Parallel() // each test has namespaces of its own, and mostly waits
	}
	dir := t.TempDir()
	r := &rig{t: t, host: newSpace(t), world: newSpace(t), state: dir, files: Host{Etc: filepath.Join(dir, "etc"), Run: filepath.Join(dir, "run")}}
	testutil.Must(t, os.Mkdir(r.files.Etc, 0o755))
	r.host.sh("ip link set lo up; sysctl -qw net.ipv4.ip_forward=0")
	r.world.sh("ip link set lo up; ip addr add 198.51.100.1/32 dev lo")
	r.link("up0", "203.0.113.2/24", "203.0.113.1/24")
	r.host.sh("ip route add default via 203.0.113.1")
	return r
}

// link makes an interface of the host that leads to the world.
func (r *rig) link(name, here, there string) { r.linkTo(r.world, name, here, there) }

func (r *rig) linkTo(to *space, name, here, there string) {
	r.t.Helper()
	testutil.Must(r.t, r.host.in(func() error {
		cmd := exec.Command("ip", "link", "add", "c"+name, "type", "veth", "peer", "name", "w"+name, "netns", "/proc/self/fd/3")
		cmd.ExtraFiles = []*os.File{to.file}
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}))
	// To the host a macvlan is hardware; the veth below it is the cable.
	r.host.sh(fmt.Sprintf("sysctl -qw net.ipv4.conf.c%s.arp_ignore=8; ip link set c%s up; ip link add %s link c%s type macvlan mode bridge; ip addr add %s dev %s; ip link set %s up",
		name, name, name, name, here, name, name))
	to.sh(fmt.Sprintf("ip addr add %s dev w%s; ip link set w%s up", there, name, name))
	// The kernel notices a carrier up to a second later, or when it is asked.
	to.sh("ip link show dev w" + name)
	r.host.sh(fmt.Sprintf("ip link show dev c%s; ip link show dev %s", name, name))
}

// connect makes a namespace and gives it the network of a gang.
func (r *rig) connect(gang string) (*space, Network) {
	r.t.Helper()
	s := newSpace(r.t)
	n, err := r.attach(gang, s)
	testutil.Must(r.t, err)
	return s, n
}

func (r *rig) attach(gang string, s *space) (n Network, err error) {
	err = r.host.in(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		n, err = Connect(ctx, r.options(gang, s))
		return err
	})
	return n, err
}

func (r *rig) options(gang string, s *space) Options {
	return Options{Gang: gang, NetNS: s.file, Out: true, State: r.state, Host: r.files}
}

func (r *rig) disconnect(gang string) {
	r.t.Helper()
	testutil.Must(r.t, r.host.in(func() error { return Disconnect(context.Background(), gang) }))
}

func (r *rig) sweep() {
	r.t.Helper()
	testutil.Must(r.t, r.host.in(func() error { return RestoreHost(context.Background(), r.state, r.files) }))
}

// leftovers returns what a gang's network has changed on the host.
func (r *rig) leftovers() string {
	r.t.Helper()
	var b strings.Builder
	b.WriteString(r.host.sh("ip -o link | grep -o 'berth[0-9a-f]*' ; ip -4 -o addr | grep berth; grep -H . /proc/sys/net/ipv4/conf/*/forwarding | grep ':1'; true"))
	testutil.Must(r.t, r.host.in(func() error {
		return withNFTables(func(c *nftables.Conn) error {
			has, err := hasTable(c)
			if has {
				b.WriteString("table inet berth\n")
			}
			return err
		})
	}))
	if _, err := os.Stat(openedPath(r.state)); err == nil {
		b.WriteString("network.forward\n")
	}
	return b.String()
}

// child starts the test binary in the host's namespace, with the namespace of a gang. Its output is
// returned after its end.
func (r *rig) child(gang *space, words ...string) (*exec.Cmd, *strings.Builder) {
	r.t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "BERTH_TEST_CHILD="+strings.Join(words, " "))
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if gang != nil {
		cmd.ExtraFiles = []*os.File{gang.file}
	}
	testutil.Must(r.t, r.host.in(cmd.Start))
	return cmd, &out
}
