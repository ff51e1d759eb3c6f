package network

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
)

// names is a DNS server that answers each name with 192.0.2.<length of the name>. By UDP it
// truncates the answers for names that begin with "long".
func (s *space) names(address string, asked *atomic.Int64) {
	s.t.Helper()
	testutil.Must(s.t, s.in(func() error {
		p, err := net.ListenPacket("udp", address)
		if err != nil {
			return err
		}
		l, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		s.t.Cleanup(func() { p.Close(); l.Close() })
		go func() {
			buf := make([]byte, 4096)
			for {
				n, from, err := p.ReadFrom(buf)
				if err != nil {
					return
				}
				asked.Add(1)
				p.WriteTo(answerTo(buf[:n], true), from)
			}
		}()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				asked.Add(1)
				go func() {
					defer c.Close()
					size := make([]byte, 2)
					for {
						if _, err := io.ReadFull(c, size); err != nil {
							return
						}
						q := make([]byte, binary.BigEndian.Uint16(size))
						if _, err := io.ReadFull(c, q); err != nil {
							return
						}
						a := answerTo(q, false)
						c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(a))), a...))
					}
				}()
			}
		}()
		return nil
	}))
}

func answerTo(query []byte, udp bool) []byte {
	size := 12
	if len(query) < 18 || len(query) < int(query[12])+18 {
		return query
	}
	first := string(query[13 : 13+query[12]])
	for size < len(query) && query[size] != 0 {
		size += int(query[size]) + 1
	}
	size += 5
	a := append([]byte(nil), query[:size]...)
	a[2] |= 0x80
	a[3] = 0x80
	a[10], a[11] = 0, 0
	if udp && strings.HasPrefix(first, "long") {
		a[2] |= 2
		return a
	}
	if query[size-3] == 1 { // A
		a[7] = 1
		a = append(a, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, byte(len(first)))
	}
	return a
}

// lookup resolves a name as a program in the gang does.
func (s *space) lookup(n Network, name string) (string, error) {
	var got string
	err := s.in(func() error {
		server := parseResolvConf(string(n.Resolver)).servers[0]
		r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, kind, _ string) (c net.Conn, err error) {
			err = s.in(func() error {
				c, err = (&net.Dialer{}).DialContext(ctx, kind, net.JoinHostPort(server.String(), "53"))
				return err
			})
			return c, err
		}}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		all, err := r.LookupHost(ctx, name)
		got = strings.Join(all, " ")
		return err
	})
	return got, err
}

func (r *rig) resolv(text string) {
	testutil.Must(r.t, os.WriteFile(filepath.Join(r.files.Etc, "resolv.conf"), []byte(text), 0o600))
}

// relay starts a relay for a gang, as the gang's monitor does.
func (r *rig) relay(n Network) {
	r.t.Helper()
	words := []string{"relay", n.Gateway.String()}
	for _, a := range n.Upstream {
		words = append(words, a.String())
	}
	cmd, out := r.child(nil, words...)
	r.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if r.t.Failed() {
			r.t.Log("the relay said: " + out.String())
		}
	})
	for range 500 {
		if text, _ := r.host.try("ss -Hlnt"); strings.Contains(text, n.Gateway.String()+"%") {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	r.t.Fatalf("the relay doesn't listen: %s", r.host.sh("ss -lntu"))
}

func TestNames(t *testing.T) {
	for _, tt := range []struct {
		name, resolv, behind string
		serve                func(r *rig, asked *atomic.Int64)
		relay                bool
	}{
		{"a server outside", "nameserver 198.51.100.1\n", "", func(r *rig, asked *atomic.Int64) { r.world.names("198.51.100.1:53", asked) }, false},
		{"systemd-resolved", "nameserver 127.0.0.53\n", "nameserver 198.51.100.1\n", func(r *rig, asked *atomic.Int64) { r.world.names("198.51.100.1:53", asked) }, false},
		{"a resolver on the loopback", "nameserver 127.0.0.1\n", "", func(r *rig, asked *atomic.Int64) { r.host.names("127.0.0.1:53", asked) }, true},
		{"by IPv6", "nameserver ::1\n", "", func(r *rig, asked *atomic.Int64) { r.host.names("[::1]:53", asked) }, true},
		{"the second answers", "nameserver 127.0.0.1\nnameserver 127.0.0.2\n", "", func(r *rig, asked *atomic.Int64) { r.host.names("127.0.0.2:53", asked) }, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.resolv(tt.resolv)
			if tt.behind != "" {
				testutil.Must(t, os.MkdirAll(filepath.Join(r.files.Run, "systemd/resolve"), 0o755))
				testutil.Must(t, os.WriteFile(filepath.Join(r.files.Run, "systemd/resolve/resolv.conf"), []byte(tt.behind), 0o600))
			}
			var asked atomic.Int64
			tt.serve(r, &asked)
			s, n := r.connect(gangA)
			if n.Relay != tt.relay {
				t.Fatalf("%+v", n)
			}
			if tt.relay {
				r.relay(n)
			}
			for _, name := range []string{"node", "other.example", "long.example"} { // the last one needs TCP
				first, _, _ := strings.Cut(name, ".")
				if got, err := s.lookup(n, name+"."); err != nil || got != fmt.Sprintf("192.0.2.%d", len(first)) {
					t.Errorf("%s: %q, %v", name, got, err)
				}
			}
			if asked.Load() < 3 {
				t.Errorf("the server was asked %d times", asked.Load())
			}
		})
	}
}

// A gang's relay is for that gang alone.
func TestRelayIsPrivate(t *testing.T) {
	r := newRig(t)
	r.resolv("nameserver 127.0.0.1\n")
	var asked atomic.Int64
	r.host.names("127.0.0.1:53", &asked)
	_, na := r.connect(gangA)
	b, _ := r.connect(gangB)
	r.relay(na)
	r.world.sh("ip route add 10.213.0.0/16 via 203.0.113.2")
	for name, s := range map[string]*space{"another gang": b, "the world": r.world} {
		if got := s.reachClosed(port(na.Gateway, 53)); got != closed {
			t.Errorf("%s gets %q by TCP", name, got)
		}
		query := frame(nil, na.Gateway, na.Gateway, "")[12:] // any header of 12 bytes
		_ = s.in(func() error {
			c, err := net.Dial("udp", port(na.Gateway, 53))
			testutil.Must(t, err)
			defer c.Close()
			c.Write(query)
			c.SetDeadline(time.Now().Add(200 * time.Millisecond))
			if _, err := c.Read(make([]byte, 100)); err == nil {
				t.Errorf("%s gets an answer by UDP", name)
			}
			return nil
		})
	}
	if asked.Load() != 0 {
		t.Errorf("the server was asked")
	}
}

// A client that sends too much, nonsense, or an endless query delays no other for long.
func TestRelayIsBounded(t *testing.T) {
	r := newRig(t)
	r.resolv("nameserver 127.0.0.1\n")
	var asked atomic.Int64
	r.host.names("127.0.0.1:53", &asked)
	s, n := r.connect(gangA)
	r.relay(n)
	testutil.Must(t, s.in(func() error {
		for range 2000 {
			c, err := net.Dial("udp", port(n.Gateway, 53))
			if err != nil {
				return err
			}
			c.Write([]byte("nonsense, but long enough for a header"))
			c.Write(nil)
			c.Close()
		}
		for range 3 * maxConnections {
			c, err := net.DialTimeout("tcp", port(n.Gateway, 53), 200*time.Millisecond)
			if err == nil {
				t.Cleanup(func() { c.Close() })
			}
		}
		return nil
	}))
	if got, err := s.lookup(n, "node."); err != nil || got != "192.0.2.4" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestRelayFails(t *testing.T) {
	testutil.NeedRoot(t)
	listen := netip.MustParseAddr("127.0.0.1")
	if err := RelayDNS(t.Context(), listen); err == nil || err.Error() != "relay names at 127.0.0.1: there is no server to ask" {
		t.Error(err)
	}
	if err := RelayDNS(t.Context(), netip.MustParseAddr("192.0.2.77"), listen); err == nil || err.Error() != "relay names at 192.0.2.77: no interface has this address" {
		t.Error(err)
	}
	r := newRig(t)
	r.resolv("nameserver 127.0.0.1\n")
	r.host.listen("0.0.0.0:53")
	_, n := r.connect(gangA)
	cmd, out := r.child(nil, "relay", n.Gateway.String(), "127.0.0.1")
	if err := cmd.Wait(); err == nil || !strings.Contains(out.String(), unix.EADDRINUSE.Error()) {
		t.Errorf("%v: %s", err, out)
	}
	done, cancel := context.WithCancel(t.Context())
	cancel()
	if err := RelayDNS(done, netip.MustParseAddr("127.0.0.1"), listen); err != nil && !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("after its end: %v", err)
	}
}
