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

// ErrNoPorts means that no port is free outside net.ipv4.ip_local_port_range, from which the
// kernel takes the ports of outgoing connections.
var ErrNoPorts = errors.New("no ports are free outside net.ipv4.ip_local_port_range")

// Leased are ports that no other gang of this host gets while File is open, in whichever
// process: the lock is the open file's, and goes on with a descriptor that is inherited.
//
// A lease excludes other gangs only. Another program can still bind the port; [Lease] only checks
// that none does at the moment.
type Leased struct {
	First, Count int
	File         *os.File `json:"-"`
}

// Lease picks count ports one after the other, of TCP in this process's network
// namespace, that nobody has: no gang, by the lock below the directory, and no listener,
// by trying. They lie outside ip_local_port_range, where a connection that goes out can
// take any port at any moment.
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

// Resume takes a lease again that a process had which is gone. Its ports may have
// listeners: the gang's own. The error Is unix.EAGAIN if somebody has it.
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

// span is ports, both ends with it.
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

// pickPorts locks ports in the file and says which. It begins somewhere: what still knows the
// ports of a gang that has ended won't find the next one there.
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

// lockPorts is of bytes: each stands for the port of its number.
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

// checkVacant reports whether this process could listen at every address: by IPv6, which stands
// for both, where the machine has it.
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
