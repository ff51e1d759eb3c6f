package task

import (
	"bytes"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestParseKeys(t *testing.T) {
	for text, want := range map[string]string{
		"ctrl-p,ctrl-q": "\x10\x11", "CTRL-A": "\x01", "a": "a", "ctrl-@,x": "\x00x", "": "", "ctrl-[": "\x1b",
		"ctrl-": "error", "ctrl-pp": "error", "ab": "error", "a,,b": "error", "ctrl-1": "error",
	} {
		got, err := parseKeys(text)
		if err != nil {
			got = []byte("error")
		}
		if string(got) != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}

func TestMatcher(t *testing.T) {
	for _, tt := range []struct {
		name, keys string
		typed      []string
		want       string
		left       bool
	}{
		{"nothing of them", "pq", []string{"abc"}, "abc", false},
		{"alone", "pq", []string{"pq"}, "", true},
		{"one by one", "pq", []string{"a", "p", "q"}, "a", true},
		{"what comes after is nobody's", "pq", []string{"apqb"}, "a", true},
		{"begun and given up", "pq", []string{"p", "a"}, "pa", false},
		{"begun twice", "pq", []string{"pp", "q"}, "p", true},
		{"they begin within themselves", "ppq", []string{"pppq"}, "p", true},
		{"the same", "ababc", []string{"abababc"}, "ab", true},
		{"one key", "p", []string{"ap"}, "a", true},
		{"no keys", "", []string{"pq"}, "pq", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := matcher{keys: []byte(tt.keys)}
			var got strings.Builder
			left := false
			for _, typed := range tt.typed {
				pass, found := m.match([]byte(typed))
				got.Write(pass)
				left = left || found
			}
			if got.String() != tt.want || left != tt.left {
				t.Errorf("passes %q, left %v, want %q, %v", got.String(), left, tt.want, tt.left)
			}
		})
	}
}

// TestMatcherLosesNothing: input before the detach keys is passed on however it is split, except input
// that can still become the keys.
func TestMatcherLosesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		letters := rapid.SampledFrom([]byte("ab"))
		keys := rapid.SliceOfN(letters, 1, 4).Draw(t, "keys")
		m := matcher{keys: keys}
		var typed, passed []byte
		for range 5 {
			chunk := rapid.SliceOfN(letters, 0, 6).Draw(t, "chunk")
			typed = append(typed, chunk...)
			pass, found := m.match(chunk)
			passed = append(passed, pass...)
			at := bytes.Index(typed, keys)
			if found != (at >= 0) {
				t.Fatalf("%q in %q: found %v", keys, typed, found)
			}
			if found {
				if !bytes.Equal(passed, typed[:at]) {
					t.Fatalf("%q in %q: passes %q", keys, typed, passed)
				}
				return
			}
			if all := append(bytes.Clone(passed), keys[:m.held]...); !bytes.Equal(all, typed) {
				t.Fatalf("%q in %q: passes %q and holds %q back", keys, typed, passed, keys[:m.held])
			}
		}
	})
}
