//go:build amd64 || arm64

package early

import "unsafe"

// alone is what Go's runtime reads in its environment.
const alone = "GOMAXPROCS=1\x00"

// vector is a copy of what the kernel puts on the stack of a new program.
//
//nolint:gochecknoglobals // it is used before there is a heap
var vector [1 << 11]uintptr

// Alone returns the stack of a new program with one more variable at the beginning of
// its environment, by which Go's runtime does with one processor: what lives for two
// milliseconds gains nothing by more, and each costs threads and memory. Only that
// runtime sees it. The words and the environment that the kernel shows of this process
// stay, and the real runtime gets those. A stack that is too large is returned as it is.
//
//go:nosplit
func Alone(stack unsafe.Pointer) unsafe.Pointer {
	env := *(*int)(stack) + 2 // its index: behind the number, the words and a zero
	n := env
	for *(*uintptr)(unsafe.Add(stack, n*word)) != 0 {
		n++
	}
	for n++; *(*uintptr)(unsafe.Add(stack, n*word)) != 0; n += 2 { // the auxiliary vector, of pairs
	}
	n += 2
	if n+1 > len(vector) {
		return stack
	}
	copied := unsafe.Pointer(&vector)
	for i := range n {
		to := i
		if i >= env {
			to++
		}
		*(*uintptr)(unsafe.Add(copied, to*word)) = *(*uintptr)(unsafe.Add(stack, i*word))
	}
	*(*uintptr)(unsafe.Add(copied, env*word)) = uintptr(unsafe.Pointer(unsafe.StringData(alone)))
	return copied
}
