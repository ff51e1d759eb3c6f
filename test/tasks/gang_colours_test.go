package tasks

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/test/rig"
)

// TestGangColours: on a terminal the ranks of a role have a colour of their own before what
// they write, unless NO_COLOR is set; elsewhere there is none.
func TestGangColours(t *testing.T) {
	s := startApart(t, "v2", "crun")
	file := filepath.Join(t.TempDir(), "gang.toml")
	rig.Must(t, os.WriteFile(file, fmt.Appendf(nil, `image = %q
network = "none"
[[role]]
name = "feed"
command = ["echo", "words"]
[[role]]
name = "train"
replicas = 2
command = ["echo", "words"]
`, rig.ImagePath(t, "busybox")), 0o600))
	plain := []string{"feed-0  | words", "train-0 | words", "train-1 | words"}
	coloured := []string{"\x1b[33mtrain-0 | \x1b[0mwords", "\x1b[33mtrain-1 | \x1b[0mwords", "\x1b[36mfeed-0  | \x1b[0mwords"}
	s.detach(t, "--name", "colours", "--gang", file)
	s.prints(t, "0\n", "wait", "colours")
	for _, tt := range []struct {
		name, noColour, term string
		terminal             bool
		want                 []string
	}{
		{"a terminal", "", "xterm", true, coloured},
		{"NO_COLOR", "1", "xterm", true, plain},
		{"a terminal without colours", "", "dumb", true, plain},
		{"a pipe", "", "xterm", false, plain},
	} {
		for _, words := range [][]string{{"run", "--runtime", s.runtime, "--gang", file}, {"logs", "colours"}} {
			t.Run(tt.name+" "+words[0], func(t *testing.T) {
				cmd := s.Command("env", append([]string{"NO_COLOR=" + tt.noColour, "TERM=" + tt.term, s.Berth}, words...)...)
				tty := newTerminal(t, 33, 77)
				if tt.terminal {
					cmd.Stdout = tty.slave
				}
				got := s.Run(t, cmd)
				if tt.terminal {
					const end = "that is all"
					_, err := tty.slave.WriteString(end)
					rig.Must(t, err)
					var all strings.Builder
					tty.awaitText(t, &all, end)
					got.Out = strings.TrimSuffix(strings.ReplaceAll(all.String(), "\r\n", "\n"), end)
				}
				lines := strings.Split(strings.TrimSuffix(got.Out, "\n"), "\n")
				slices.Sort(lines)
				if diff := cmp.Diff(tt.want, lines); diff != "" || got.Code != 0 || got.Err != "" {
					t.Errorf("%d %q (-want +got):\n%s", got.Code, got.Err, diff)
				}
			})
		}
	}
}
