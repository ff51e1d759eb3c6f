package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/launcher"
	"github.com/berth-gpu/berth/launcher/tasks"
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

// Whatever is typed and however it is cut, all up to the keys is passed on, but for what
// could still become them.
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

func TestMomentOf(t *testing.T) {
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.FixedZone("here", 3600))
	for text, want := range map[string]time.Time{
		"10m": now.Add(-10 * time.Minute), "2026-01-02": time.Date(2026, 1, 2, 0, 0, 0, 0, now.Location()),
		"2026-01-02T03:04:05Z": time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), "2026-01-02T03:04:05.5": time.Date(2026, 1, 2, 3, 4, 5, 5e8, now.Location()),
		"2026-01-02T03:04": time.Date(2026, 1, 2, 3, 4, 0, 0, now.Location()), "1767323045": time.Unix(1767323045, 0), "1.5": time.Unix(1, 5e8), "": {},
	} {
		if got, err := momentOf(text, now); !got.Equal(want) || err != nil {
			t.Errorf("%q is %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"yesterday", "2026-13-01", "-5", "10"} {
		if got, err := momentOf(text, now); err == nil && text != "10" {
			t.Errorf("%q is %v", text, got)
		}
	}
}

func TestReadLasting(t *testing.T) {
	for _, tt := range []struct {
		name string
		args []string
		want launcher.Lifecycle
		err  string
	}{
		{name: "nothing said"},
		{name: "in the foreground", args: []string{"--rm"}},
		{name: "kept", args: []string{"--rm=false"}, want: launcher.Lifecycle{Keep: true}},
		{name: "detached", args: []string{"-d"}, want: launcher.Lifecycle{Keep: true}},
		{name: "detached, and not kept", args: []string{"-d", "--rm"}},
		{name: "restart", args: []string{"-d", "--restart", "on-failure:3"}, want: launcher.Lifecycle{Keep: true, Restart: tasks.Restart{Policy: "on-failure", Max: 3}}},
		{name: "odd restart", args: []string{"--restart", "often"}, err: `--restart: restart policy "often" is not known`},
		{name: "timeout in seconds", args: []string{"--timeout", "90"}, want: launcher.Lifecycle{Timeout: 90 * time.Second}},
		{name: "timeout", args: []string{"--timeout", "2h"}, want: launcher.Lifecycle{Timeout: 2 * time.Hour}},
		{name: "odd timeout", args: []string{"--timeout", "-1s"}, err: `--timeout "-1s": not a time, such as 90s or 2h`},
		{name: "log", args: []string{"--log-opt", "max-size=1m", "--log-opt", "max-file=5"}, want: launcher.Lifecycle{LogLimit: tasks.LogLimit{Size: 1 << 20, Files: 5}}},
		{name: "tiny log", args: []string{"--log-opt", "max-size=1k"}, err: "a file of the log has at least 64k"},
		{name: "no files", args: []string{"--log-opt", "max-file=0"}, err: "not a number of files from 1 to 1000"},
		{name: "odd option", args: []string{"--log-opt", "tag=x"}, err: `--log-opt "tag=x": there are max-size and max-file`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := parsed(t, lifecycleFlags(), tt.args...)
			if err != nil {
				t.Fatal(err)
			}
			var o launcher.Options
			err = readLifecycle(c, &o)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("error %v, want %q", err, tt.err)
				}
				return
			}
			if diff := cmp.Diff(tt.want, o.Lifecycle); diff != "" || err != nil {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}
