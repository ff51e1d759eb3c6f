package tasks

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/test/images/fake"
	"github.com/berth-gpu/berth/test/rig"
)

// echoes says whether the terminal shows what is typed.
func (tty terminal) echoes(t *testing.T) bool {
	t.Helper()
	modes, err := unix.IoctlGetTermios(int(tty.slave.Fd()), unix.TCGETS)
	rig.Must(t, err)
	return modes.Lflag&unix.ECHO != 0
}

// TestLoginAsks: on a terminal login asks for what is missing, shows no password, and leaves the
// terminal as it was.
func TestLoginAsks(t *testing.T) {
	s := startServer(t, "dgx-h100", "v2", "crun")
	r := fake.Serve(t, t.TempDir())
	r.Change(func(r *fake.Registry) { r.User, r.Password = "alice", "s3cret" })
	for _, tt := range []struct {
		name, password string
		args           []string
		code           int
		ends           string
	}{
		{"right", "s3cret\n", nil, 0, "Login Succeeded\r\n"},
		{"user given", "s3cret\n", []string{"-u", "alice"}, 0, "Login Succeeded\r\n"},
		{"wrong", "wrong\n", nil, 1, "check user name and password\r\n"},
		{"none", "\n", nil, 1, "the password is empty\r\n"},
		{"interrupted", "", nil, 130, "interrupted (interrupt)\r\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			home := t.TempDir()
			tty := newTerminal(t, 33, 200)
			cmd := s.Command("env", append([]string{"DOCKER_CONFIG=" + home, s.Berth, "login", r.Host}, tt.args...)...)
			cmd.Stdin, cmd.Stdout, cmd.Stderr = tty.slave, tty.slave, tty.slave
			cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true}
			rig.Must(t, cmd.Start())
			var said strings.Builder
			if tt.args == nil {
				tty.awaitText(t, &said, "Username: ", "berth:")
				if !tty.echoes(t) {
					t.Error("the user name isn't shown")
				}
				tty.typeText(t, "alice\n")
			}
			tty.awaitText(t, &said, "Password: ", "berth:")
			rig.WaitUntil(t, "the terminal shows nothing", func() bool { return !tty.echoes(t) })
			if tty.typeText(t, tt.password); tt.password == "" {
				tty.typeText(t, "\x03")
			}
			tty.awaitText(t, &said, tt.ends)
			_ = cmd.Wait() // the code says it
			if code := cmd.ProcessState.ExitCode(); code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			if !tty.echoes(t) {
				t.Error("the terminal stays without echo")
			}
			if strings.Contains(said.String(), "s3cret") || strings.Contains(said.String(), "wrong") {
				t.Errorf("the terminal shows %q", said.String())
			}
			_, err := os.Stat(filepath.Join(home, "config.json"))
			if kept := err == nil; kept != (tt.code == 0) {
				t.Errorf("a login is kept: %v", kept)
			}
		})
	}
}
