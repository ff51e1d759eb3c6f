package waiting

import (
	"fmt"
	"testing"
	"time"

	"github.com/berth-gpu/berth/cmd/berth/verbtest"
)

// TestWaitLines: for forty requests that wait for each other, each prints one line and not one for
// each change.
func TestWaitLines(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var w waitLines
	for _, tt := range []struct {
		text  string
		after time.Duration
		want  bool
	}{
		{"39 ahead", 0, true},
		{"38 ahead", time.Second, false},
		{"37 ahead", 59 * time.Second, false},
		{"36 ahead", time.Minute, true},
		{"36 ahead", 3 * time.Minute, false},
		{"35 ahead", 3 * time.Minute, true},
	} {
		if got := w.isDue(tt.text, start.Add(tt.after)); got != tt.want {
			t.Errorf("%s after %v: %v", tt.text, tt.after, got)
		}
	}
}

func TestWaitFlag(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		want time.Duration
	}{
		{"nothing said", nil, 0},
		{"for ever", []string{"--wait"}, -1},
		{"for a while", []string{"--wait=10m"}, 10 * time.Minute},
		{"not at all", []string{"--wait=0s"}, 0},
		{"switched off", []string{"--wait=false"}, 0},
		{"no-wait", []string{"--no-wait"}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, err := verbtest.ParseFlags(t, Flags(), c.args...)
			if err != nil {
				t.Fatal(err)
			}
			if got := Limit(ctx); got != c.want {
				t.Errorf("waits %v, want %v", got, c.want)
			}
		})
	}
}

// TestWaitAndNoWait: --wait together with --no-wait is refused.
func TestWaitAndNoWait(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--wait", "--no-wait"}, "--wait and --no-wait contradict each other; berth --help shows the usage"},
		{[]string{"--no-wait", "--wait=1h"}, "--wait and --no-wait contradict each other; berth --help shows the usage"},
		{[]string{"--no-wait", "--wait=0s"}, "<nil>"},
		{[]string{"--no-wait", "--wait=false"}, "<nil>"},
		{[]string{"--no-wait=false", "--wait"}, "<nil>"},
		{[]string{"--wait", "10m"}, "the duration of --wait is attached with =: --wait=10m; berth --help shows the usage"},
	} {
		ctx, err := verbtest.ParseFlags(t, Flags(), c.args...)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(CheckFlags(ctx)); got != c.want {
			t.Errorf("%q: %s, want %s", c.args, got, c.want)
		}
	}
}

func TestWaitFlagRefuses(t *testing.T) {
	for _, value := range []string{"soon", "-1s", "10", ""} {
		if _, err := verbtest.ParseFlags(t, Flags(), "--wait="+value); err == nil {
			t.Errorf("--wait=%s is taken", value)
		}
	}
}

// TestWaitFlagIsOfOneCommandLine: the value of --wait doesn't stay for the next command line of the
// same process.
func TestWaitFlagIsOfOneCommandLine(t *testing.T) {
	if _, err := verbtest.ParseFlags(t, Flags(), "--wait"); err != nil {
		t.Fatal(err)
	}
	ctx, err := verbtest.ParseFlags(t, Flags())
	if err != nil {
		t.Fatal(err)
	}
	if got := Limit(ctx); got != 0 {
		t.Errorf("waits %v", got)
	}
}

func TestWaitFlagString(t *testing.T) {
	for _, c := range []struct {
		p    *waitTime
		want string
	}{{nil, ""}, {&waitTime{}, ""}, {&waitTime{set: true, limit: time.Minute}, "1m0s"}} {
		if got := c.p.String(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}
