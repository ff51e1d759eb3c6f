//go:build amd64 || arm64

package early

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// holdsNothing says that the container that is to be deleted has neither a lease nor a
// bundle that berth has written. An identifier that isn't in the ledger at all has no
// lease there.
//
//go:nosplit
func holdsNothing(argv, envp unsafe.Pointer) bool {
	id := element(argv, work.call.words[0])
	length := 0
	for ; at(id, length) != 0; length++ {
		if !unescaped(at(id, length)) {
			return false
		}
	}
	if !isID(id) || mentioned(id, length) || !state(work.program.crun, argv, envp, id) {
		return false
	}
	n, answer := work.path.read(unsafe.Pointer(&work.data), len(work.data), &work.stat)
	if absent(answer) {
		return true
	}
	return answer == 0 && untouched(n)
}

// unescaped are the letters that are in every JSON file as they are.
//
//go:nosplit
func unescaped(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-' || c == '.'
}

//go:nosplit
func mentioned(id unsafe.Pointer, length int) bool {
	work.path.reset()
	work.path.add(places.ledger)
	n, answer := work.path.read(unsafe.Pointer(&work.data), len(work.data), &work.stat)
	if absent(answer) {
		return false
	}
	times, _ := count(unsafe.Pointer(&work.data), n, id, length)
	return answer != 0 || times > 0
}

// untouched says of the state of a container, of which so many bytes are in work.data,
// that it names one bundle, plainly, and that berth keeps no original there.
//
//go:nosplit
func untouched(n int) bool {
	data := unsafe.Pointer(&work.data)
	const label, key = `"bundle=`, `"bundle"`
	labels, start := count(data, n, unsafe.Pointer(unsafe.StringData(label)), len(label))
	start += len(label)
	keys, last := count(data, n, unsafe.Pointer(unsafe.StringData(key)), len(key))
	if work.program.crun {
		if labels != 0 || keys != 1 {
			return false
		}
		start = last + len(key)
		for blank := false; start < n && at(data, start) != '"'; start++ {
			c := at(data, start)
			if c != ':' && c != ' ' && c != '\n' || blank && c == ':' {
				return false
			}
			blank = blank || c == ':'
		}
		start++
	} else if labels != 1 {
		return false
	}
	b := &work.path
	b.reset()
	for ; start < n && at(data, start) != '"'; start++ {
		c := at(data, start)
		if c == '\\' || c < ' ' || c > '~' {
			return false
		}
		b.addByte(c)
	}
	if start >= n || b.text[0] != '/' {
		return false
	}
	b.add("/config.json.berth")
	return absent(b.lookup(&work.stat, unix.AT_SYMLINK_NOFOLLOW))
}
