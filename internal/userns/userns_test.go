package userns

import "testing"

func TestParseOuterUID(t *testing.T) {
	for _, tt := range []struct {
		uidMap string
		want   int
	}{
		{"         0          0 4294967295\n", -1},
		{"         0       4711          1\n", 4711},
		{"         0       4711          1\n         1     100000      65536\n", 4711},
		{"         1     100000      65536\n         0       4711          1\n", 4711},
		{"         0          0          1\n", 0},  // root's own, with less than all users
		{"      4711       4711          1\n", -1}, // without a root
		{"", -1},
		{"a b c\n", -1},
	} {
		if got := parseOuterUID(tt.uidMap); got != tt.want {
			t.Errorf("%q: %d, want %d", tt.uidMap, got, tt.want)
		}
	}
}
