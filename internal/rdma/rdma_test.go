package rdma

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/netlink"
)

// kernel is a socket with what the kernel would say behind it: requests as they come are
// kept, "KIND FLAGS BODY" in hexadecimal.
type kernel struct {
	asked   []string
	mode    int // -1: it doesn't say
	devices map[string]uint32
	refuses uint32 // the index of a device that doesn't move
	closed  bool
}

func (k *kernel) Ask(kind, flags uint16, body []byte) ([]netlink.Message, error) {
	k.asked = append(k.asked, fmt.Sprintf("%x %x %x", kind, flags, body))
	switch kind {
	case getSystem:
		if k.mode < 0 {
			return nil, unix.EINVAL
		}
		return []netlink.Message{{Kind: getSystem, Body: netlink.Append(nil, attrMode, []byte{byte(k.mode)})}}, nil
	case setDevice:
		if index := binary.NativeEndian.Uint32(body[4:]); index == k.refuses {
			return nil, unix.EPERM
		}
		return nil, nil
	}
	return nil, unix.EINVAL
}

func (k *kernel) List(kind uint16, body []byte) (all []netlink.Message, err error) {
	k.asked = append(k.asked, fmt.Sprintf("%x list %x", kind, body))
	for name, index := range k.devices {
		all = append(all, netlink.Message{Kind: kind, Body: netlink.AppendText(netlink.AppendUint32(nil, attrIndex, index), attrName, name)})
	}
	return append(all, netlink.Message{Kind: kind, Body: []byte{1}}), nil
}

func (k *kernel) Close() error { k.closed = true; return nil }

func TestMode(t *testing.T) {
	for mode, want := range map[int]Mode{0: Exclusive, 1: Shared, -1: Shared} {
		k := &kernel{mode: mode}
		got, err := (&Conn{k}).Mode()
		if err != nil || got != want {
			t.Errorf("%d: %q, %v, want %q", mode, got, err, want)
		}
		if d := cmp.Diff([]string{"1406 0 "}, k.asked); d != "" {
			t.Errorf("asked (-want +got):\n%s", d)
		}
	}
}

// TestTake: the bytes that move a device, little-endian as on all machines that have one.
func TestTake(t *testing.T) {
	ns, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	set := func(index uint32) string {
		body := fmt.Sprintf("08000100%08x08004400%08x", swap(index), swap(uint32(ns.Fd())))
		return "1402 0 " + body
	}
	for _, tt := range []struct {
		name    string
		take    []string
		refuses uint32
		asked   []string
		back    []string
		err     error
	}{
		{"both", []string{"mlx5_0", "mlx5_10"}, 0, []string{"1401 list ", set(3), set(259)}, nil, nil},
		{"one isn't there", []string{"mlx5_0", "mlx5_1"}, 0, []string{"1401 list "}, nil, ErrMissing},
		{"the second is refused", []string{"mlx5_10", "mlx5_0"}, 3, []string{"1401 list ", set(259), set(3)}, []string{"mlx5_10"}, unix.EPERM},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k := &kernel{devices: map[string]uint32{"mlx5_0": 3, "mlx5_10": 259}, refuses: tt.refuses}
			var back []string
			undo, err := (&Conn{k}).take(tt.take, ns, func(names []string) error { back = slices.Clone(names); return nil })
			if !errors.Is(err, tt.err) {
				t.Errorf("error %v, want %v", err, tt.err)
			}
			if d := cmp.Diff(tt.asked, k.asked); d != "" {
				t.Errorf("asked (-want +got):\n%s", d)
			}
			if !slices.Equal(back, tt.back) {
				t.Errorf("brought back %q, want %q", back, tt.back)
			}
			if err != nil {
				return
			}
			if err := undo(); err != nil || !slices.Equal(back, tt.take) {
				t.Errorf("undone: %q, %v", back, err)
			}
		})
	}
}

func swap(n uint32) uint32 {
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], n)
	return binary.BigEndian.Uint32(b[:])
}

// TestHeader: the numbers are those of the kernel's header, where a machine has it.
func TestHeader(t *testing.T) {
	const header = "/usr/include/rdma/rdma_netlink.h"
	cc, err := exec.LookPath("cc")
	if _, missing := os.Stat(header); err != nil || missing != nil {
		t.Logf("no compiler or no %s: the numbers are taken as they are", header)
		return
	}
	names := []string{
		"RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_GET)", "RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_SET)",
		"RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_SYS_GET)", "RDMA_NLDEV_ATTR_DEV_INDEX", "RDMA_NLDEV_ATTR_DEV_NAME",
		"RDMA_NLDEV_SYS_ATTR_NETNS_MODE", "RDMA_NLDEV_NET_NS_FD",
	}
	want := fmt.Sprintln(getDevices, setDevice, getSystem, attrIndex, attrName, attrMode, attrDestined)
	dir := t.TempDir()
	source := "#include <stdio.h>\n#include <rdma/rdma_netlink.h>\nint main(void) { printf(\"" +
		strings.TrimSpace(strings.Repeat("%d ", len(names))) + "\\n\", " + strings.Join(names, ", ") + "); return 0; }\n"
	if err := os.WriteFile(filepath.Join(dir, "x.c"), []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(cc, "-o", filepath.Join(dir, "x"), filepath.Join(dir, "x.c")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	out, err := exec.Command(filepath.Join(dir, "x")).Output()
	if err != nil || string(out) != want {
		t.Errorf("the header has %s, we have %s: %v", out, want, err)
	}
}

// TestThisKernel: whatever it has, it is one of the modes.
func TestThisKernel(t *testing.T) {
	c, err := Dial()
	if errors.Is(err, ErrNone) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	mode, err := c.Mode()
	if err != nil || mode != Shared && mode != Exclusive {
		t.Errorf("mode %q, %v", mode, err)
	}
	if _, err := c.Devices(); err != nil {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
