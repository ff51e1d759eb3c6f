package verb

import (
	"context"
	"errors"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
)

// TestSettleInterrupts: a signal that came before is never lost, even if the goroutine that collects
// signals runs late.
func TestSettleInterrupts(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for range 1000 {
		ctx, stop := WithInterrupts()
		testutil.Must(t, unix.Tgkill(unix.Getpid(), unix.Gettid(), unix.SIGTERM))
		SettleInterrupts(ctx)
		if ctx.Err() == nil {
			t.Fatal("the signal is lost")
		}
		stop()
		var cause Interrupted
		if !errors.As(context.Cause(ctx), &cause) || cause.Signal != unix.SIGTERM {
			t.Fatal(cause)
		}
	}
}
