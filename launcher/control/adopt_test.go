package control

import "testing"

func TestParseStatus(t *testing.T) {
	for _, tt := range []struct {
		line, text string
		code       int
		ok         bool
	}{
		{"started 0123456789ab\n", "0123456789ab", 0, true},
		{"failed 127 there is no such command\n", "there is no such command", 127, true},
		{"started\n", "", 0, false},
		{"started ../../etc\n", "../../etc", 0, false},
		{"failed 0 x\n", "", 0, false},
		{"failed 256 x\n", "", 0, false},
		{"failed 125\n", "", 0, false},
		{"", "", 0, false},
	} {
		if code, text, ok := ParseStatus(tt.line); code != tt.code || text != tt.text || ok != tt.ok {
			t.Errorf("%q: %d, %q, %v", tt.line, code, text, ok)
		}
	}
}
