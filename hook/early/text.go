//go:build amd64 || arm64

package early

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// raw is a system call. It returns what the kernel says: an error is its negative
// number.
//
//go:noescape
func raw(number, a, b, c, d uintptr) uintptr

// Texts are as the kernel gives them: they end with a zero.

//go:nosplit
func at(text unsafe.Pointer, i int) byte { return *(*byte)(unsafe.Add(text, i)) }

// element is the one of that index in a list of texts, nil at its end.
//
//go:nosplit
func element(list unsafe.Pointer, i int) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Add(list, i*word))
}

//go:nosplit
func is(text unsafe.Pointer, word string) bool {
	return begins(text, word) && at(text, len(word)) == 0
}

//go:nosplit
func begins(text unsafe.Pointer, word string) bool {
	for i := 0; i < len(word); i++ {
		if at(text, i) != word[i] {
			return false
		}
	}
	return true
}

// contains finds two characters beside each other.
//
//go:nosplit
func contains(text unsafe.Pointer, first, second byte) bool {
	for i := 0; at(text, i) != 0; i++ {
		if at(text, i) == first && at(text, i+1) == second {
			return true
		}
	}
	return false
}

// variable is the value of the first variable of that name, an empty text if there is
// none.
//
//go:nosplit
func variable(envp unsafe.Pointer, name string) unsafe.Pointer {
	for i := 0; element(envp, i) != nil; i++ {
		if e := element(envp, i); begins(e, name) && at(e, len(name)) == '=' {
			return unsafe.Add(e, len(name)+1)
		}
	}
	return unsafe.Pointer(unsafe.StringData("\x00"))
}

const pathMax = unix.PathMax

// buffer is a text that is being written. One that would be too long is void.
type buffer struct {
	text [pathMax]byte
	n    uint
	void bool
}

//go:nosplit
func (b *buffer) reset() { b.n, b.void, b.text[0] = 0, false, 0 }

//go:nosplit
func (b *buffer) addByte(c byte) {
	n := b.n
	if n >= pathMax-1 {
		b.void = true
		return
	}
	b.text[n], b.text[n+1] = c, 0
	b.n = n + 1
}

//go:nosplit
func (b *buffer) add(s string) {
	for i := 0; i < len(s); i++ {
		b.addByte(s[i])
	}
}

//go:nosplit
func (b *buffer) addText(text unsafe.Pointer) {
	for i := 0; at(text, i) != 0; i++ {
		b.addByte(at(text, i))
	}
}

// addNumber adds sixteen digits.
//
//go:nosplit
func (b *buffer) addNumber(n uint64) {
	for shift := 60; shift >= 0; shift -= 4 {
		b.addByte("0123456789abcdef"[n>>(uint(shift)&63)&15])
	}
}

// stat says what is at this path, or false if nothing can be found out.
//
//go:nosplit
func (b *buffer) stat(st *unix.Stat_t, flags uintptr) bool { return b.lookup(st, flags) == 0 }

// lookup is stat with the kernel's answer.
//
//go:nosplit
func (b *buffer) lookup(st *unix.Stat_t, flags uintptr) uintptr {
	if b.void {
		return failed(unix.ENAMETOOLONG)
	}
	return raw(unix.SYS_NEWFSTATAT, here, uintptr(unsafe.Pointer(&b.text)), uintptr(unsafe.Pointer(st)), flags)
}

// here is AT_FDCWD.
const here = ^uintptr(99)

// failed is how the kernel says so.
//
//go:nosplit
func failed(errno unix.Errno) uintptr { return -uintptr(errno) }

// absent says that the kernel has found nothing there.
//
//go:nosplit
func absent(answer uintptr) bool {
	return answer == failed(unix.ENOENT) || answer == failed(unix.ENOTDIR)
}

// read reads a regular file that has no more than so many bytes, and of which st then
// says the rest; a larger one is an error, whatever the number.
//
//go:nosplit
func (b *buffer) read(into unsafe.Pointer, size int, st *unix.Stat_t) (n int, answer uintptr) {
	if b.void {
		return 0, failed(unix.ENAMETOOLONG)
	}
	fd := raw(unix.SYS_OPENAT, here, uintptr(unsafe.Pointer(&b.text)), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if int(fd) < 0 {
		return 0, fd
	}
	answer = raw(unix.SYS_FSTAT, fd, uintptr(unsafe.Pointer(st)), 0, 0)
	if answer == 0 && st.Mode&unix.S_IFMT != unix.S_IFREG {
		answer = failed(unix.EINVAL)
	}
	for answer == 0 {
		got := int(raw(unix.SYS_READ, fd, uintptr(unsafe.Add(into, n)), uintptr(size-n), 0))
		if got < 0 {
			answer = uintptr(got)
		}
		if got <= 0 {
			break
		}
		if n += got; n == size {
			answer = failed(unix.EFBIG)
		}
	}
	raw(unix.SYS_CLOSE, fd, 0, 0, 0)
	return n, answer
}

// count is how often a word is in so many bytes, and where it is last.
//
//go:nosplit
func count(data unsafe.Pointer, size int, word unsafe.Pointer, length int) (times, last int) {
	for i := 0; i+length <= size; i++ {
		k := 0
		for k < length && at(data, i+k) == at(word, k) {
			k++
		}
		if k == length {
			times, last = times+1, i
		}
	}
	return times, last
}
