package userns

import (
	"reflect"
	"testing"
)

func TestParseOuterUID(t *testing.T) {
	for _, tt := range []struct {
		uidMap string
		want   int
	}{
		{"         0          0 4294967295\n", -1},
		{"      1000       4711          1\n", 4711}, // without a root
		{"      1000       1000          1\n", 1000},
		{"         0       4711          1\n", 4711},
		{"         0       4711          1\n         1     100000      65536\n", 4711},
		{"         1     100000      65536\n         0       4711          1\n", 4711},
		{"         0          0          1\n", 0},  // root's own, with less than all users
		{"      4711       4711          1\n", -1}, // neither root nor this user
		{"", -1},
		{"a b c\n", -1},
	} {
		if got := parseOuterUID(tt.uidMap, 1000); got != tt.want {
			t.Errorf("%q: %d, want %d", tt.uidMap, got, tt.want)
		}
	}
}

func TestIsInitial(t *testing.T) {
	for ids, want := range map[string]bool{
		"         0          0 4294967295\n": true,
		"0 1000 1\n":                         false,
		"0 1000 1\n1 100000 65536\n":         false,
		"0 0 4294967294\n":                   false,
		"":                                   false,
	} {
		if got := IsInitial(ids); got != want {
			t.Errorf("%q: %v", ids, got)
		}
	}
}

func TestOuterIDs(t *testing.T) {
	m := parseIDMap("0 4711 1\n1 100000 65536\n")
	for id, want := range map[uint64]uint64{0: 4711, 1: 100000, 65536: 165535, 65537: 0, 1 << 31: 0} {
		if got, found := m.outerID(id); got != want || found != (want > 0) {
			t.Errorf("%d: %d, %v", id, got, found)
		}
	}
}

func TestSubordinateIDs(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       idMap
	}{
		{"by name", "bob:100000:65536\nalice:165536:65536\n", idMap{{0, 1000, 1}, {1, 165536, 65536}}},
		{"by uid", "1000:165536:65536\n", idMap{{0, 1000, 1}, {1, 165536, 65536}}},
		{"two ranges", "alice:165536:10\n1000:500000:20\n", idMap{{0, 1000, 1}, {1, 165536, 10}, {11, 500000, 20}}},
		{"overlapping", "alice:165536:10\nalice:165545:10\nalice:165536:10\nalice:999:2\nalice:1:998\n", idMap{{0, 1000, 1}, {1, 165536, 10}, {11, 1, 998}}},
		{"other names", "alice2:1:2\n#alice:1:2\nalic:1:2\n", idMap{{0, 1000, 1}}},
		{"no ranges", "alice\nalice:1\nalice:x:1\nalice:1:0\nalice:1:2:3\nalice:-1:2\nalice:4294967295:1\nalice:1:4294967295\n", idMap{{0, 1000, 1}}},
		{"too many", "alice:2000:4294960000\nalice:1:999\n", idMap{{0, 1000, 1}, {1, 2000, 4294960000}, {4294960001, 1, 999}}},
		{"empty", "", idMap{{0, 1000, 1}}},
	} {
		got := withRoot(1000, parseSubordinateIDs(tt.text, "1000", "alice"))
		if !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}
