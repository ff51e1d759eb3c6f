package process

import (
	"fmt"
	"os/exec"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// The exit of a process that isn't a child of the caller, by each way to read it.
func TestWait(t *testing.T) {
	for _, tt := range []struct {
		name, line string
		code       int
		signal     unix.Signal
	}{
		{"zero", "read x; exit 0", 0, 0},
		{"code", "read x; exit 42", 42, 0},
		{"signal", "read x; kill -9 $$", -1, unix.SIGKILL},
	} {
		for _, buried := range []bool{false, true} {
			t.Run(tt.name+" buried "+strconv.FormatBool(buried), func(t *testing.T) {
				cmd := exec.Command("sh", "-c", tt.line)
				in, err := cmd.StdinPipe()
				if err != nil {
					t.Fatal(err)
				}
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				fd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
				if err != nil {
					t.Fatal(err)
				}
				defer unix.Close(fd)
				in.Close()
				if buried {
					_ = cmd.Wait()
				}
				status, err := Wait("/proc", fd, cmd.Process.Pid)
				if buried && err != nil && !kernelTells(t) {
					t.Logf("this kernel keeps no exit codes: %v", err)
					return
				}
				if err != nil || status.ExitStatus() != tt.code || tt.signal != 0 && status.Signal() != tt.signal {
					t.Errorf("exit %d, signal %v, %v, want %d, %v", status.ExitStatus(), status.Signal(), err, tt.code, tt.signal)
				}
				_ = cmd.Wait()
			})
		}
	}
}

// kernelTells: exit codes of the buried are there since Linux 6.15.
func kernelTells(t *testing.T) bool {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	return major > 6 || major == 6 && minor >= 15
}
