package supervise

import (
	"errors"
	"io/fs"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/gpu/match"
	"github.com/berth-gpu/berth/launcher/rootfs"
)

func TestExitCode(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want int
	}{
		{errors.New("x"), 125},
		{fs.ErrPermission, 125},
		{rootfs.ErrCantInvoke, 126},
		{rootfs.ErrNotFound, 127},
		{match.ErrBusy, 75},
		{&Interrupted{Signal: unix.SIGTERM}, 143},
		{errors.Join(rootfs.ErrNotFound, errors.New("cleaning up")), 127},
	} {
		if got := ExitCode(tt.err); got != tt.want {
			t.Errorf("%v: %d, want %d", tt.err, got, tt.want)
		}
	}
}
