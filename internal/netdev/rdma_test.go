package netdev

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
)

// The interfaces of RDMA devices: containers that share a namespace ask for the same, and
// one that is on its way back is waited for.
func TestMoveInRDMA(t *testing.T) {
	h := newHost(t)
	h.ip("link add enp1 type veth peer name peer1", "addr add 192.0.2.1/24 dev enp1", "link set enp1 up")
	n, err := OpenNamespace("/proc", h.pid)
	testutil.Must(t, err)
	defer n.Close()
	for range 2 {
		testutil.Must(t, n.MoveInRDMA(nil, []string{"enp1"}))
		if text := h.inside("addr show dev enp1"); !strings.Contains(text, "192.0.2.1/24") {
			t.Fatalf("inside: %s", text)
		}
	}
	late := exec.Command("sh", "-c", "sleep 0.2; ip link add enp2 type veth peer name peer2")
	testutil.Must(t, late.Start())
	testutil.Must(t, n.MoveInRDMA(nil, []string{"enp1", "enp2"}))
	testutil.Must(t, late.Wait())
	if text := h.inside("link show dev enp2"); !strings.Contains(text, "enp2@") {
		t.Errorf("inside: %s", text)
	}
	h.ip("link add enp3 type veth peer name peer3")
	if err := n.MoveInRDMA(nil, []string{"enp3", "enp4"}); !errors.Is(err, ErrMissing) {
		t.Errorf("one that isn't there: %v", err)
	}
	h.ip("link show dev enp3") // nothing was moved
	if kernel, err := openRDMA(n.own); err == nil {
		_, err := listRDMA(kernel)
		testutil.Must(t, err)
		kernel.Close()
	} else if err := n.MoveInRDMA([]string{"mlx5_0"}, []string{"enp3"}); !errors.Is(err, ErrNoRDMA) {
		t.Errorf("without RDMA: %v", err)
	}
	h.ip("link show dev enp3")
}

// rdmaKernel is a kernel with RDMA devices, of which one doesn't move.
type rdmaKernel struct {
	to      *os.File
	moved   []uint32
	refuses uint32
}

func (k *rdmaKernel) RdmaLinkList() ([]*netlink.RdmaLink, error) {
	return []*netlink.RdmaLink{
		{Attrs: netlink.RdmaLinkAttrs{Index: 259, Name: "mlx5_10"}},
		{Attrs: netlink.RdmaLinkAttrs{Index: 3, Name: "mlx5_0"}},
	}, nil
}

func (k *rdmaKernel) RdmaLinkSetNsFd(l *netlink.RdmaLink, ns uint32) error {
	if ns != uint32(k.to.Fd()) {
		return unix.EBADF
	}
	k.moved = append(k.moved, l.Attrs.Index)
	if l.Attrs.Index == k.refuses {
		return unix.EPERM
	}
	return nil
}

func TestMoveRDMALinks(t *testing.T) {
	ns, err := os.Open("/dev/null")
	testutil.Must(t, err)
	defer ns.Close()
	for _, tt := range []struct {
		name    string
		devices []string
		refuses uint32
		moved   []uint32
		back    []string
		is      error
		err     string
	}{
		{"both", []string{"mlx5_0", "mlx5_10"}, 0, []uint32{3, 259}, nil, nil, ""},
		{"one isn't there", []string{"mlx5_0", "mlx5_1"}, 0, nil, nil, ErrMissing, "RDMA device mlx5_1: it isn't in the host's network namespace; here are [mlx5_0 mlx5_10]"},
		{"the second is refused", []string{"mlx5_10", "mlx5_0"}, 3, []uint32{259, 3}, []string{"mlx5_10"}, unix.EPERM, "move RDMA device mlx5_0: operation not permitted"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k := &rdmaKernel{to: ns, refuses: tt.refuses}
			var back []string
			err := moveRDMALinks(k, ns, tt.devices, func(names []string) error { back = slices.Clone(names); return nil })
			if !errors.Is(err, tt.is) || err != nil && err.Error() != tt.err {
				t.Errorf("error %v, want %v", err, tt.err)
			}
			if d := cmp.Diff(tt.moved, k.moved); d != "" {
				t.Errorf("moved (-want +got):\n%s", d)
			}
			if !slices.Equal(back, tt.back) {
				t.Errorf("brought back %q, want %q", back, tt.back)
			}
		})
	}
}
