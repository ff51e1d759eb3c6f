package supervise

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/spell"
)

// ParseSignal reads a signal's name, with or without SIG, or its number.
func ParseSignal(s string) (syscall.Signal, error) {
	const rtMin, rtMax = 34, 64 // as the C library has it
	if n, err := strconv.Atoi(s); err == nil && n > 0 && n <= rtMax {
		return syscall.Signal(n), nil
	}
	name := "SIG" + strings.TrimPrefix(strings.ToUpper(s), "SIG")
	if sig := unix.SignalNum(name); sig != 0 {
		return sig, nil
	}
	for base, from := range map[string]int{"SIGRTMIN": rtMin, "SIGRTMAX": rtMax} {
		rest, ok := strings.CutPrefix(name, base)
		n, err := strconv.Atoi("0" + strings.TrimLeft(rest, "+-"))
		if strings.HasPrefix(rest, "-") {
			n = -n
		}
		if ok && err == nil && from+n >= rtMin && from+n <= rtMax {
			return syscall.Signal(from + n), nil
		}
	}
	return 0, fmt.Errorf("signal %q is not known%s: names such as TERM or SIGINT and numbers are", s, spell.Suggestion(strings.TrimPrefix(name, "SIG"), signalNames()...))
}

func signalNames() (names []string) {
	for n := range 32 {
		if name := unix.SignalName(syscall.Signal(n)); name != "" {
			names = append(names, strings.TrimPrefix(name, "SIG"))
		}
	}
	return names
}
