package run

import (
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
)

// TestTypos: the error of a misspelt value of a flag names the nearest valid value.
func TestTypos(t *testing.T) {
	for _, tt := range []struct{ flag, typed, meant string }{
		{"--restart", "on-faliure:3", "on-failure"},
		{"--restart", "alway", "always"},
		{"--stop-signal", "TREM", "TERM"},
		{"--stop-signal", "sigusr9", "USR1"},
		{"--security-opt", "secomp=unconfined", "seccomp"},
		{"--security-opt", "no-new-privilges", "no-new-privileges"},
		{"--pull", "allways", "always"},
		{"--mount", "typ=bind,src=/tmp,dst=/x", "type"},
		{"--mount", "type=bnd,src=/tmp,dst=/x", "bind"},
		{"--ulimit", "nofiles=1", "nofile"},
		{"--log-opt", "max-sizes=1m", "max-size"},
	} {
		t.Run(tt.flag+" "+tt.typed, func(t *testing.T) {
			app := &cli.App{
				Writer: io.Discard, ErrWriter: io.Discard, DisableSliceFlagSeparator: true,
				Flags: slices.Concat(runFlags(), lifecycleFlags(), pullFlags()), ExitErrHandler: func(*cli.Context, error) {},
				Action: func(c *cli.Context) error { _, err := launchOptions(c, berth.Config{}); return err },
			}
			err := app.RunContext(t.Context(), []string{"berth", tt.flag, tt.typed, "IMAGE"})
			if want := "(did you mean " + tt.meant + "?)"; err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, without %s", err, want)
			}
		})
	}
}
