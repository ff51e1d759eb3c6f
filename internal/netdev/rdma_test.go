package netdev

import (
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/rdma"
)

// The interfaces of RDMA devices: containers that share a namespace ask for the same, and
// one that is on its way back is waited for.
func TestTakeRDMA(t *testing.T) {
	h := newHost(t)
	h.ip("link add enp1 type veth peer name peer1", "addr add 192.0.2.1/24 dev enp1", "link set enp1 up")
	n, err := Of("/proc", h.pid)
	must(t, err)
	defer n.Close()
	for range 2 {
		must(t, n.TakeRDMA(nil, []string{"enp1"}))
		if text := h.inside("addr show dev enp1"); !strings.Contains(text, "192.0.2.1/24") {
			t.Fatalf("inside: %s", text)
		}
	}
	late := exec.Command("sh", "-c", "sleep 0.2; ip link add enp2 type veth peer name peer2")
	must(t, late.Start())
	must(t, n.TakeRDMA(nil, []string{"enp1", "enp2"}))
	must(t, late.Wait())
	if text := h.inside("link show dev enp2"); !strings.Contains(text, "enp2@") {
		t.Errorf("inside: %s", text)
	}
	h.ip("link add enp3 type veth peer name peer3")
	if err := n.TakeRDMA(nil, []string{"enp3", "enp4"}); !errors.Is(err, ErrMissing) {
		t.Errorf("one that isn't there: %v", err)
	}
	h.ip("link show dev enp3") // nothing was moved
	if c, err := rdma.Dial(); err == nil {
		must(t, c.Close())
	} else if err := n.TakeRDMA([]string{"mlx5_0"}, []string{"enp3"}); !errors.Is(err, rdma.ErrNone) {
		t.Errorf("without RDMA: %v", err)
	}
	h.ip("link show dev enp3")
}
