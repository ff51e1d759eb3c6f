package spec

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

func TestCheckRoot(t *testing.T) {
	const whole, all = "         0          0 4294967295\n", ^uint64(0)
	for _, tt := range []struct {
		name   string
		uid    int
		uidMap string
		caps   uint64
		ok     bool
	}{
		{"root", 0, whole, all, true},
		{"a user", 1000, whole, 0, false},
		{"root of a user namespace", 0, "0 1000 1\n", all, false},
		{"mapped ranges", 0, "0 1000 1\n1 100000 65536\n", all, false},
		{"without its capability", 0, whole, all &^ (1 << unix.CAP_SYS_ADMIN), false},
	} {
		if err := checkRoot(tt.uid, tt.uidMap, tt.caps); (err == nil) != tt.ok || (err != nil && !errors.Is(err, ErrNotRoot)) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
