package netdev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
)

// host is a network namespace in the place of the host's. The test's thread is in it
// and ends with the test, and with it the namespace.
type host struct {
	t   *testing.T
	pid int // of a process in a namespace of its own, the container
}

func newHost(t *testing.T) *host {
	t.Helper()
	testutil.NeedRoot(t)
	runtime.LockOSThread()
	testutil.Must(t, unix.Unshare(unix.CLONE_NEWNET))
	h := &host{t: t}
	h.ip("link set lo up")
	h.pid = h.process("unshare", "--net", "sh", "-c", "echo; exec cat")
	return h
}

// process starts one that says a line when it is ready, and ends with its input.
func (h *host) process(args ...string) int {
	h.t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	in, err := cmd.StdinPipe()
	testutil.Must(h.t, err)
	out, err := cmd.StdoutPipe()
	testutil.Must(h.t, err)
	testutil.Must(h.t, cmd.Start())
	h.t.Cleanup(func() { in.Close(); _ = cmd.Wait() })
	_, err = io.ReadFull(out, make([]byte, 1))
	testutil.Must(h.t, err)
	return cmd.Process.Pid
}

// ip changes the host's side.
func (h *host) ip(lines ...string) {
	h.t.Helper()
	for _, line := range lines {
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			h.t.Fatalf("ip %s: %v\n%s", line, err, out)
		}
	}
}

// inside runs ip in the container.
func (h *host) inside(line string) string {
	return runCommand("nsenter", append([]string{"--net", "--target", fmt.Sprint(h.pid), "ip"}, strings.Fields(line)...)...)
}

func runCommand(name string, args ...string) string {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Sprintf("%s%v", out, err)
	}
	return string(out)
}

func (h *host) moveIn(devices ...Device) error {
	n, err := OpenNamespace("/proc", h.pid)
	if err != nil {
		return err
	}
	return errors.Join(n.MoveIn(devices), n.Close())
}

// findFacts returns the lines of what ip says of an interface that a test names.
func findFacts(text string, words ...string) (found []string) {
	for _, w := range words {
		if strings.Contains(text, w) {
			found = append(found, w)
		}
	}
	return found
}

func TestMoveIn(t *testing.T) {
	h := newHost(t)
	h.ip("link add enp1 type veth peer name peer1", "link set peer1 up", "link set enp1 mtu 1400 address 02:00:00:00:00:01 up",
		"addr add 192.0.2.1/24 brd + dev enp1", "addr add 192.0.2.9/24 dev enp1", "addr add 198.51.100.1 peer 198.51.100.2/32 dev enp1",
		"addr add 169.254.7.7/16 scope link dev enp1", "addr add 203.0.113.1/24 dev enp1 valid_lft 1000 preferred_lft 1000",
		"-6 addr add 2001:db8::1/64 nodad dev enp1")
	testutil.Must(t, h.moveIn(Device{"enp1", "eth1"}))
	want := []string{
		"eth1@", ",UP", "mtu 1400", "02:00:00:00:00:01", "altname enp1", "192.0.2.1/24 brd 192.0.2.255", "192.0.2.9/24",
		"198.51.100.1 peer 198.51.100.2/32", "2001:db8::1/64 scope global nodad",
	}
	text := h.inside("addr show dev eth1")
	if got := findFacts(text, append(want, "169.254", "203.0.113")...); strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("inside:\n%s\nhas %q, want %q", text, got, want)
	}
	if left := runCommand("ip", "-o", "link", "show"); strings.Contains(left, "enp1") {
		t.Errorf("left on the host:\n%s", left)
	}
	if links := h.inside("-o link show"); strings.Count(links, "\n") != 2 {
		t.Errorf("inside, besides lo:\n%s", links)
	}
}

// A device that is back from a container where it had another name.
func TestMoveInAgain(t *testing.T) {
	for _, again := range []string{"eth1", "enp1", "eth2"} {
		t.Run(again, func(t *testing.T) {
			h := newHost(t)
			h.ip("link add enp1 type veth peer name peer1")
			testutil.Must(t, h.moveIn(Device{"enp1", "eth1"}))
			bring := exec.Command("nsenter", "--net", "--target", fmt.Sprint(h.pid), "ip", "link", "set", "eth1", "netns", fmt.Sprint(unix.Gettid()))
			if out, err := bring.CombinedOutput(); err != nil {
				t.Fatalf("%s%v", out, err)
			}
			h.ip("link show eth1")
			testutil.Must(t, AwaitDevices(t.Context(), []Device{{"enp1", again}}))
			testutil.Must(t, h.moveIn(Device{"enp1", again}))
			if text := h.inside("link show dev " + again); !strings.Contains(text, again+"@") || !strings.Contains(text, "enp1") {
				t.Errorf("inside: %s", text)
			}
		})
	}
}

// All devices come, or none, and none is changed.
func TestMoveInAllOrNone(t *testing.T) {
	tests := []struct {
		name    string
		inside  []string
		devices []Device
		is      error
		err     string
	}{
		{"the second is missing", nil, []Device{{"enp1", "eth1"}, {"enp3", "eth3"}}, ErrMissing, "network device enp3: it isn't in the host's network namespace"},
		{"a name is taken", []string{"link add eth2 type bridge"}, []Device{{"enp1", "eth1"}, {"enp2", "eth2"}}, fs.ErrExist, "network device enp2: eth2 in the container: file exists"},
		{"no address can be set", nil, []Device{{"enp1", "eth1"}, {"enp2", "enp2"}}, nil, "move network device enp2: set address 2001:db8::2/64"},
		{"one can't be moved", nil, []Device{{"enp1", "eth1"}, {"lo", "lo9"}}, unix.EINVAL, "move network device lo: invalid argument: The interface"},
		{"one by two names", nil, []Device{{"enp1", "eth1"}, {"other1", "eth2"}}, nil, "network device other1: it is the same as enp1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t)
			h.ip("link add enp1 type veth peer name peer1", "link set enp1 up", "link property add dev enp1 altname other1", "addr add 192.0.2.1/24 dev enp1",
				"link add enp2 type veth peer name peer2", "-6 addr add 2001:db8::2/64 nodad dev enp2")
			for _, line := range tt.inside {
				if out := h.inside(line); out != "" {
					t.Fatal(out)
				}
			}
			if tt.name == "no address can be set" {
				off := exec.Command("nsenter", "--net", "--target", fmt.Sprint(h.pid), "sysctl", "-q", "net.ipv6.conf.default.disable_ipv6=1")
				if out, err := off.CombinedOutput(); err != nil {
					t.Fatalf("%s%v", out, err)
				}
			}
			before, inside := linkState(runCommand("ip", "addr")), h.inside("-o link")
			err := h.moveIn(tt.devices...)
			if err == nil || !strings.Contains(err.Error(), tt.err) || tt.is != nil && !errors.Is(err, tt.is) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want %q", err, tt.err)
			}
			if after := linkState(runCommand("ip", "addr")); after != before {
				t.Errorf("the host has\n%s\nand had\n%s", after, before)
			}
			if after := h.inside("-o link"); after != inside {
				t.Errorf("the container has\n%s\nand had\n%s", after, inside)
			}
		})
	}
}

// The kernel moves first and renames then: a name that is taken in between leaves the
// interface in the container under its own.
func TestMoveInHalf(t *testing.T) {
	h := newHost(t)
	h.ip("link add enp1 type veth peer name peer1", "link set enp1 up", "addr add 192.0.2.1/24 dev enp1", "link add enp2 type veth peer name peer2")
	n, err := OpenNamespace("/proc", h.pid)
	testutil.Must(t, err)
	tr, err := n.openTransfer()
	testutil.Must(t, err)
	defer tr.close()
	var list []moving
	for _, d := range []Device{{"enp1", "eth1"}, {"enp2", "eth2"}} {
		m, err := tr.inspect(d, list)
		testutil.Must(t, err)
		list = append(list, m)
	}
	if out := h.inside("link add eth2 type bridge"); out != "" {
		t.Fatal(out)
	}
	before, inside := linkState(runCommand("ip", "addr")), h.inside("-o link")
	if err := tr.moveAllOrNone(list); err == nil || err.Error() != "move network device enp2: file exists" {
		t.Errorf("error %v", err)
	}
	if after := linkState(runCommand("ip", "addr")); after != before {
		t.Errorf("the host has\n%s\nand had\n%s", after, before)
	}
	if after := h.inside("-o link"); after != inside {
		t.Errorf("the container has\n%s\nand had\n%s", after, inside)
	}
	testutil.Must(t, n.Close())
}

// linkState leaves out what a link may say differently when it has been down: whether it
// has noticed its peer, and its link-local address.
func linkState(text string) string {
	var kept []string
	for line := range strings.Lines(text) {
		if strings.Contains(line, "fe80:") || strings.Contains(line, "valid_lft") {
			continue
		}
		if name, rest, ok := strings.Cut(line, "<"); ok {
			flags, _, _ := strings.Cut(rest, ">")
			line = name + fmt.Sprint(strings.Contains(","+flags+",", ",UP,")) + "\n"
			_, line, _ = strings.Cut(line, ": ") // the index
		}
		kept = append(kept, line)
	}
	return strings.Join(kept, "")
}

// The container's network namespace may belong to a user namespace of its own.
func TestMoveInUserNamespace(t *testing.T) {
	h := newHost(t)
	h.pid = h.process("unshare", "--user", "--map-root-user", "--net", "sh", "-c", "echo; exec cat")
	h.ip("link add enp1 type veth peer name peer1", "addr add 192.0.2.1/24 dev enp1")
	testutil.Must(t, h.moveIn(Device{"enp1", "eth1"}))
	if text := h.inside("addr show dev eth1"); !strings.Contains(text, "192.0.2.1/24") {
		t.Errorf("inside: %s", text)
	}
}

func TestNumbered(t *testing.T) {
	h := newHost(t)
	h.ip("link add enp1 type veth peer name enp2")
	if out := h.inside("link add net0 type bridge"); out != "" {
		t.Fatal(out)
	}
	testutil.Must(t, h.moveIn(Device{"enp1", "net%d"}, Device{"enp2", "net%d"}))
	if text := h.inside("-o link"); len(findFacts(text, "net0", "net1@", "net2@", "altname enp1", "altname enp2")) != 5 {
		t.Errorf("inside:\n%s", text)
	}
}

func TestOpenNamespace(t *testing.T) {
	h := newHost(t)
	if _, err := OpenNamespace("/proc", h.process("sh", "-c", "echo; exec cat")); !errors.Is(err, ErrShared) {
		t.Errorf("the caller's namespace: %v", err)
	}
	if ns, err := OpenNamespace("/proc", 1<<22); ns != nil || err == nil || !strings.Contains(err.Error(), "open process 4194304") {
		t.Errorf("no process: %v, %v", ns, err)
	}
	ended := exec.Command("true")
	testutil.Must(t, ended.Start())
	t.Cleanup(func() { _ = ended.Wait() })
	var info unix.Siginfo
	testutil.Must(t, unix.Waitid(unix.P_PID, ended.Process.Pid, &info, unix.WEXITED|unix.WNOWAIT, nil))
	if ns, err := OpenNamespace("/proc", ended.Process.Pid); ns != nil || err == nil {
		t.Errorf("a process that has ended: %v, %v", ns, err)
	}
}

func TestAwaitDevices(t *testing.T) {
	newHost(t)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	err := awaitDevices(gone, []Device{{"enp1", "eth1"}})
	if !errors.Is(err, ErrMissing) || err.Error() != "network device enp1: it isn't in the host's network namespace" {
		t.Errorf("error %v", err)
	}
	later := exec.Command("sh", "-c", "sleep 0.05; ip link add enp1 type veth peer name peer1")
	testutil.Must(t, later.Start())
	testutil.Must(t, awaitDevices(t.Context(), []Device{{"enp1", "eth1"}}))
	testutil.Must(t, later.Wait())
	testutil.Must(t, AwaitDevices(gone, []Device{{"enp1", "eth1"}}))
}

func TestCheckDevices(t *testing.T) {
	long := strings.Repeat("x", 16)
	for _, tt := range []struct {
		name    string
		devices []Device
		err     string
	}{
		{"none", nil, ""},
		{"plain", []Device{{"enp1", "eth1"}, {"enp2", ""}}, ""},
		{"numbered", []Device{{"enp1", "eth%d"}, {"enp2", "eth%d"}}, ""},
		{"alternative name", []Device{{long, "eth0"}}, ""},
		{"long name", []Device{{"enp1", long}}, `network device enp1: it can't be called "` + long + `" in a container`},
		{"long name kept", []Device{{long, ""}}, "it can't be called"},
		{"no name", []Device{{"", "eth0"}}, `network device "": no interface can be called so`},
		{"a path", []Device{{"../x", "eth0"}}, "no interface can be called so"},
		{"a space", []Device{{"a b", "eth0"}}, "no interface can be called so"},
		{"a pattern", []Device{{"enp1", "e%sd"}}, "it can't be called"},
		{"a dot", []Device{{"enp1", "."}}, "it can't be called"},
		{"one twice", []Device{{"enp1", "a"}, {"enp1", "b"}}, "network device enp1 is named twice"},
		{"two of a name", []Device{{"enp1", "a"}, {"enp2", "a"}}, "network device enp2: another one is called a in the container"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := CheckDevices(tt.devices)
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error %v, want %q", err, tt.err)
			}
		})
	}
}
