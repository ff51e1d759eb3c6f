//go:build amd64 || arm64

package early

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// holds says whether the container that is to be deleted has a lease or a bundle that
// berth has written. An identifier that isn't in the ledger at all has no lease there.
// What is left in work then is for [Begun].
//
//go:nosplit
func holds(argv, envp unsafe.Pointer) verdict {
	id := element(argv, work.call.words[0])
	length := 0
	for ; at(id, length) != 0; length++ {
		if !unescaped(at(id, length)) {
			return left
		}
	}
	if !isID(id) || !readLedger() || !state(work.program.crun, argv, envp, id) {
		return left
	}
	times, _ := count(unsafe.Pointer(&work.ledger), work.leases, id, length)
	n, answer := work.path.read(unsafe.Pointer(&work.data), len(work.data), &work.stat)
	switch {
	case absent(answer) && times == 0:
		return becomes
	case answer != 0:
		return left
	case times == 0 && untouched(n):
		return becomes
	}
	work.size = n
	return starts
}

// unescaped are the letters that are in every JSON file as they are.
//
//go:nosplit
func unescaped(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-' || c == '.'
}

// readLedger leaves the ledger in work.ledger.
//
//go:nosplit
func readLedger() bool {
	work.path.reset()
	work.path.add(places.ledger)
	n, answer := work.path.read(unsafe.Pointer(&work.ledger), len(work.ledger), &work.stat)
	if work.leases = n; answer != 0 {
		work.leases = 0
	}
	return answer == 0 || absent(answer)
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
