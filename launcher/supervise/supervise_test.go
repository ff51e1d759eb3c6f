package supervise

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The signals that reach a process, in their order, and why it was asked to end.
func TestLife(t *testing.T) {
	forEver := time.Duration(-1)
	for _, tt := range []struct {
		name   string
		terms  Terms
		passed []syscall.Signal
		stop   string
		// endsBy is the signal that ends the process.
		endsBy syscall.Signal
		// absent is how often there is no process yet.
		absent int
		want   []syscall.Signal
		why    string
	}{
		{"passed on", Terms{}, []syscall.Signal{unix.SIGUSR1, unix.SIGTERM}, "", unix.SIGTERM, 0, []syscall.Signal{unix.SIGUSR1, unix.SIGTERM}, ""},
		{"kept until there is a process", Terms{}, []syscall.Signal{unix.SIGUSR1, unix.SIGTERM}, "", unix.SIGTERM, 2, []syscall.Signal{unix.SIGUSR1, unix.SIGTERM}, ""},
		{"asked to end", Terms{}, nil, "asked", unix.SIGTERM, 0, []syscall.Signal{unix.SIGTERM}, "asked"},
		{"by its own signal", Terms{StopSignal: unix.SIGWINCH, Grace: forEver}, nil, "asked", unix.SIGWINCH, 0, []syscall.Signal{unix.SIGWINCH}, "asked"},
		{"killed after its grace", Terms{StopSignal: unix.SIGWINCH, Grace: 1}, nil, "asked", unix.SIGKILL, 0, []syscall.Signal{unix.SIGWINCH, unix.SIGKILL}, "asked"},
		{"timed out", Terms{StopSignal: unix.SIGWINCH, Grace: 1, Timeout: 1}, nil, "", unix.SIGKILL, 0, []syscall.Signal{unix.SIGWINCH, unix.SIGKILL}, "its time of 1ns was over"},
		{"timed out before it was watched", Terms{Timeout: time.Hour, Age: time.Hour}, nil, "", unix.SIGTERM, 0, []syscall.Signal{unix.SIGTERM}, "its time of 1h0m0s was over"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ended, signals, stop := make(chan struct{}), make(chan syscall.Signal, len(tt.passed)), make(chan string, 1)
			for _, sig := range tt.passed {
				signals <- sig
			}
			if tt.stop != "" {
				stop <- tt.stop
			}
			var got []syscall.Signal
			why := Life{
				Terms: tt.terms, Ended: ended, Signals: signals, Stop: stop,
				Send: func(sig syscall.Signal) bool {
					if tt.absent > 0 {
						tt.absent--
						return false
					}
					if got = append(got, sig); sig == tt.endsBy {
						close(ended)
					}
					return true
				},
			}.Wait()
			if !slices.Equal(got, tt.want) || why != tt.why {
				t.Errorf("signals %v, why %q; want %v, %q", got, why, tt.want, tt.why)
			}
		})
	}
}

// The size of a terminal is told by Resize alone.
func TestLifeResized(t *testing.T) {
	ended, resized := make(chan struct{}), make(chan struct{}, 1)
	resized <- struct{}{}
	Life{
		Ended: ended, Resized: resized, Resize: func() { close(ended) },
		Send: func(sig syscall.Signal) bool {
			t.Errorf("signal %v", sig)
			return true
		},
	}.Wait()
}

// A signal that is to end a process that doesn't exist ends what would start it.
func TestLifeWithoutProcess(t *testing.T) {
	for _, tt := range []struct {
		name   string
		terms  Terms
		passed []syscall.Signal
		want   syscall.Signal
	}{
		{"asked to end", Terms{}, []syscall.Signal{unix.SIGUSR1, unix.SIGHUP}, unix.SIGHUP},
		{"killed", Terms{StopSignal: unix.SIGWINCH, Timeout: 1, Grace: 1}, nil, unix.SIGKILL},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ended, signals := make(chan struct{}), make(chan syscall.Signal, len(tt.passed))
			for _, sig := range tt.passed {
				signals <- sig
			}
			var got syscall.Signal
			Life{
				Terms: tt.terms, Ended: ended, Signals: signals,
				Send:    func(syscall.Signal) bool { return false },
				Abandon: func(sig syscall.Signal) { got = sig; close(ended) },
			}.Wait()
			if got != tt.want {
				t.Errorf("%v, want %v", got, tt.want)
			}
		})
	}
}

// Thaw is called until the process has ended, once the process was killed.
func TestLifeThaws(t *testing.T) {
	ended, signals, killed, thawed := make(chan struct{}), make(chan syscall.Signal, 2), false, 0
	signals <- unix.SIGUSR1
	signals <- unix.SIGTERM
	Life{
		Ended: ended, Signals: signals,
		Send:   func(sig syscall.Signal) bool { killed = sig == unix.SIGTERM; return true },
		Killed: func() bool { return killed },
		Thaw: func() {
			if thawed++; !killed {
				t.Error("thawed before it was killed")
			}
			if thawed == 3 {
				close(ended)
			}
		},
	}.Wait()
	if thawed != 3 {
		t.Errorf("thawed %d times", thawed)
	}
}
