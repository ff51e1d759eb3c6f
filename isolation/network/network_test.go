package network

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/testutil"
)

const (
	gangA = "0a789d129a52"
	gangB = "b52c4e0f1d33"
)

func TestOut(t *testing.T) {
	r := newRig(t)
	r.world.listen("198.51.100.1:80")
	s, n := r.connect(gangA)
	if got := s.reach("198.51.100.1:80"); got != "203.0.113.2" {
		t.Errorf("the world sees %q, want the host's address", got)
	}
	if n.Interface != "eth0" || n.MTU != 1500 || !n.Address.IsValid() || n.Relay {
		t.Errorf("%+v", n)
	}
	if text := s.sh("ip addr; ip route"); !strings.Contains(text, n.Address.String()) || strings.Contains(text, "inet6 fe80") ||
		!strings.Contains(text, "default via "+n.Gateway.String()) {
		t.Errorf("inside:\n%s", text)
	}
	r.disconnect(gangA)
	r.disconnect(gangA)
	r.sweep()
	r.sweep()
	if left := r.leftovers(); left != "" {
		t.Errorf("left:\n%s", left)
	}
}

// Measures the second of two gangs: Connect and Disconnect.
func BenchmarkConnect(b *testing.B) {
	r := newRig(b)
	r.connect(gangB)
	s := newSpace(b)
	testutil.Must(b, r.host.in(func() error {
		for b.Loop() {
			_, err := Connect(context.Background(), r.options(gangA, s))
			if err := errors.Join(err, Disconnect(context.Background(), gangA)); err != nil {
				return err
			}
		}
		return nil
	}))
}
