package launcher

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/gpu/match"
	"github.com/berth-gpu/berth/launcher/supervise"
)

func TestValidName(t *testing.T) {
	for name, want := range map[string]bool{
		"a": true, "7": true, "Job-1.b_c": true, strings.Repeat("x", 63): true,
		"": false, strings.Repeat("x", 64): false, "-a": false, ".a": false, "_a": false,
		"a/b": false, "a\n": false, "a b": false, "é": false, "aé": false, "a\x00": false, "a\xff": false,
	} {
		if got := validName(name); got != want {
			t.Errorf("name %q: %v, want %v", name, got, want)
		}
	}
}

func TestExitCode(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want int
	}{
		{errors.New("x"), 125},
		{ErrNotRoot, 125},
		{ErrCantInvoke, 126},
		{ErrNotFound, 127},
		{match.ErrBusy, 75},
		{&Interrupted{Signal: unix.SIGTERM}, 143},
		{errors.Join(ErrNotFound, errors.New("cleaning up")), 127},
	} {
		if got := supervise.ExitCode(tt.err); got != tt.want {
			t.Errorf("%v: %d, want %d", tt.err, got, tt.want)
		}
	}
}
