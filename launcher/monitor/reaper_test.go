package monitor

import (
	"errors"
	"os/exec"
	"testing"
)

func TestRunWhileOthersCollect(t *testing.T) {
	r, done := newReaper(), make(chan struct{})
	defer func() { <-done }()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				r.collect()
			}
		}
	}()
	for range 50 {
		if err := r.run(exec.Command("true")); err != nil {
			t.Fatalf("true: %v", err)
		}
		err := r.run(exec.Command("sh", "-c", "exit 3"))
		var exit interface{ ExitCode() int }
		if !errors.As(err, &exit) || exit.ExitCode() != 3 {
			t.Fatalf("exit 3: %v", err)
		}
	}
}
