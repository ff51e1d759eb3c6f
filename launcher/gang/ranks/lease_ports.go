package ranks

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/smallfile"
)

// ErrNoPorts means that not enough ports are free outside net.ipv4.ip_local_port_range, from which the
// kernel takes the ports of outgoing connections.
var ErrNoPorts = errors.New("no ports are free outside net.ipv4.ip_local_port_range")

// Leased are ports that no other gang of this host gets while File is open. The lock belongs to the open
// file description, so a process that inherits the descriptor holds it too.
//
// A lease excludes other gangs only. Other programs can bind the ports; [Lease] only checks that none
// has bound them at that time.
type Leased struct {
	First, Count int
	File         *os.File `json:"-"`
}

// Lease leases count consecutive TCP ports in this process's network namespace that no gang has leased,
// by a lock in the directory, and on which no program listens. They are outside ip_local_port_range,
// where an outgoing connection can take any port at any time.
func Lease(dir string, count int) (*Leased, error) {
	low, high, err := ephemeralRange()
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "ports"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	first, err := pickPorts(f, candidateSpans(low, high), count)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &Leased{first, count, f}, nil
}

// Resume takes the lease of a process that has ended. The gang itself may listen on the ports. The error
// Is unix.EAGAIN if another gang has leased one of them.
func Resume(dir string, first, count int) (*Leased, error) {
	f, err := os.OpenFile(filepath.Join(dir, "ports"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := lockPorts(f, first, count); err != nil {
		return nil, errors.Join(fmt.Errorf("lease ports %d to %d: %w", first, first+count-1, err), f.Close())
	}
	return &Leased{first, count, f}, nil
}

// span is a range of ports, both ends included.
type span struct{ low, high int }

// candidateSpans returns the port ranges to search: high ports, which few services use, then ports
// below PyTorch's default (29500). Kubernetes' node ports (30000 to 32767) are excluded: it forwards
// them without a listener.
func candidateSpans(low, high int) (all []span) {
	for _, s := range []span{{61000, 65535}, {10000, 29399}} {
		if s.high < low || s.low > high {
			all = append(all, s)
			continue
		}
		if high < s.high {
			all = append(all, span{high + 1, s.high})
		}
		if s.low < low {
			all = append(all, span{s.low, low - 1})
		}
	}
	return all
}

// pickPorts locks count ports and returns the first. It starts at a random position, so that programs
// that still use the ports of an ended gang don't reach the next gang.
func pickPorts(f *os.File, spans []span, count int) (int, error) {
	for _, s := range spans {
		n := (s.high - s.low + 1) / count
		if n == 0 {
			continue
		}
		for i, start := 0, rand.IntN(n); i < n; i++ {
			first := s.low + (start+i)%n*count
			switch err := takePorts(f, first, count); {
			case err == nil:
				return first, nil
			case !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EADDRINUSE):
				return 0, err
			}
		}
	}
	return 0, fmt.Errorf("%d ports in a row: %w", count, ErrNoPorts)
}

func takePorts(f *os.File, first, count int) error {
	if err := lockPorts(f, first, count); err != nil {
		return err
	}
	for port := first; port < first+count; port++ {
		if err := checkVacant(port); err != nil {
			return errors.Join(err, setRecordLock(f, unix.F_UNLCK, first, count))
		}
	}
	return nil
}

// lockPorts locks ports: the byte at an offset in the file stands for the port of that number.
func lockPorts(f *os.File, first, count int) error {
	return setRecordLock(f, unix.F_WRLCK, first, count)
}

func setRecordLock(f *os.File, kind int16, first, count int) error {
	l := unix.Flock_t{Type: kind, Start: int64(first), Len: int64(count)}
	for {
		if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &l); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// checkVacant returns an error if this process can't listen on a port at every address. It binds an IPv6
// socket for both protocols if the machine has IPv6.
func checkVacant(port int) error {
	err := tryListen(port, unix.AF_INET6, &unix.SockaddrInet6{Port: port})
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL) {
		err = tryListen(port, unix.AF_INET, &unix.SockaddrInet4{Port: port})
	}
	return err
}

func tryListen(port, family int, address unix.Sockaddr) error {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("try port %d: %w", port, err)
	}
	if family == unix.AF_INET6 {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0)
	}
	if err == nil {
		err = unix.Bind(fd, address)
	}
	if err := errors.Join(err, unix.Close(fd)); err != nil {
		return fmt.Errorf("try port %d: %w", port, err)
	}
	return nil
}

func ephemeralRange() (low, high int, err error) {
	const path = "/proc/sys/net/ipv4/ip_local_port_range"
	text, err := smallfile.String(path)
	if err != nil {
		return 0, 0, err
	}
	return parseRange(text)
}

func parseRange(text string) (low, high int, err error) {
	words := strings.Fields(text)
	if len(words) != 2 {
		return 0, 0, fmt.Errorf("ip_local_port_range is %q, and not two numbers", text)
	}
	low, err = strconv.Atoi(words[0])
	if err != nil {
		return 0, 0, fmt.Errorf("ip_local_port_range: %w", err)
	}
	high, err = strconv.Atoi(words[1])
	if err != nil {
		return 0, 0, fmt.Errorf("ip_local_port_range: %w", err)
	}
	return low, high, nil
}
