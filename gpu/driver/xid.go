package driver

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/gpu"
)

// XidOffBus is the driver's code for a GPU that has fallen off the bus.
const XidOffBus = 79

// Xid is an error of a GPU that the driver has reported in the kernel's log.
type Xid struct {
	// Sequence of the record in the kernel's log: higher is later, since boot.
	Sequence uint64
	// PCI is the address of the GPU in sysfs form.
	PCI  string
	Code int
}

// Limits on reading the kernel's log, which is a ring buffer of some MiB at most.
const (
	maxRecords = 1 << 17
	maxRecord  = 8192 // more than the kernel's own limit
	maxReading = 2 * time.Second
)

// Xids reads the errors of GPUs from the kernel's log, since boot and as far as the log still has
// them. It reads the whole log, which takes milliseconds, so container starts must not call it.
// Records that programs have written are skipped. If the log is missing or must not be read, the
// result is empty.
func Xids(h gpu.Host) ([]Xid, error) {
	path := h.DevPath("kmsg")
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES), errors.Is(err, unix.ENXIO):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written
	var all []Xid
	buf := make([]byte, maxRecord)
	for end, n := time.Now().Add(maxReading), 0; n < maxRecords && time.Now().Before(end); n++ {
		size, err := unix.Read(fd, buf) // one record
		switch {
		case errors.Is(err, unix.EPIPE), errors.Is(err, unix.EINTR): // EPIPE: the kernel has overwritten the next record
			continue
		case errors.Is(err, unix.EAGAIN), err == nil && size == 0:
			return all, nil
		case err != nil:
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		for line := range bytes.Lines(buf[:size]) {
			if x, ok := parseXid(string(line)); ok {
				all = append(all, x)
			}
		}
	}
	return all, nil
}

// parseXid reads a record of /dev/kmsg, "4,1234,5678901,-;NVRM: Xid (PCI:0000:1b:00): 79, …". The
// kernel's own records have the facility 0, those of programs have another one.
func parseXid(record string) (x Xid, ok bool) {
	head, text, found := strings.Cut(record, ";")
	fields := strings.Split(head, ",")
	text, isXid := strings.CutPrefix(text, "NVRM: Xid (PCI:")
	if !found || !isXid || len(fields) < 3 {
		return x, false
	}
	priority, err := strconv.Atoi(fields[0])
	if err != nil || priority>>3 != 0 {
		return x, false
	}
	if x.Sequence, err = strconv.ParseUint(fields[1], 10, 64); err != nil {
		return x, false
	}
	address, rest, _ := strings.Cut(text, "): ")
	code, _, _ := strings.Cut(rest, ",")
	if x.Code, err = strconv.Atoi(strings.TrimSpace(code)); err != nil {
		return x, false
	}
	x.PCI = strings.ToLower(address)
	if !strings.Contains(x.PCI, ".") {
		x.PCI += ".0" // the driver leaves the function out
	}
	return x, true
}
