//go:build amd64 || arm64

package early

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// The one line of the file that Note writes: magic, numbers of sixteen digits that tell
// the configuration from any other, the runtime that it names.
const (
	magic  = "berth 1 "
	fields = 7
	// prefix is how many bytes there are before the runtime.
	prefix = len(magic) + fields*17
)

// readRoute finds out which runtime is configured.
//
//go:nosplit
func readRoute() bool {
	work.path.reset()
	work.path.add(places.config)
	if work.wanted = false; !work.path.stat(&work.stat, 0) {
		return false
	}
	work.wanted = true
	expect(&work.expected, &work.stat)
	work.path.reset()
	work.path.add(places.route)
	text := unsafe.Pointer(&work.route)
	n, answer := work.path.read(text, len(work.route), &work.stat)
	if answer != 0 || work.stat.Uid != 0 || work.stat.Mode&0o022 != 0 || n <= prefix || at(text, n-1) != '\n' {
		return false
	}
	*(*byte)(unsafe.Add(text, n-1)) = 0
	for i := range prefix {
		if at(text, i) != at(unsafe.Pointer(&work.expected.text), i) {
			return false
		}
	}
	work.named, work.wanted = n-1 > prefix, false
	return true
}

// expect writes how the line begins for a configuration file of that status.
//
//go:nosplit
func expect(b *buffer, st *unix.Stat_t) {
	b.reset()
	b.add(magic)
	for i := range fields {
		n := st.Dev
		switch i {
		case 1:
			n = st.Ino
		case 2:
			n = uint64(st.Size)
		case 3:
			n = uint64(st.Mtim.Sec)
		case 4:
			n = uint64(st.Mtim.Nsec)
		case 5:
			n = uint64(st.Ctim.Sec)
		case 6:
			n = uint64(st.Ctim.Nsec)
		}
		b.addNumber(n)
		b.addByte(' ')
	}
}
