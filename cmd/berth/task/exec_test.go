package task

import (
	"errors"
	"testing"

	"github.com/berth-gpu/berth/cmd/berth/verb"
)

// TestExecHint: a command that isn't there may have been meant for something else.
func TestExecHint(t *testing.T) {
	for want, command := range map[string][]string{
		"x; flags of berth exec stand before the task": {"-it", "bash"},
		"x; " + verb.ShellHint:                         {"ls /"},
		"x":                                            {"no such", "/"},
	} {
		if err := addExecHint(verb.ExitNotFound, command, errors.New("x")); err.Error() != want {
			t.Errorf("%q: %v, want %s", command, err, want)
		}
	}
	if err := addExecHint(7, []string{"-it"}, nil); err != nil {
		t.Error(err)
	}
}
