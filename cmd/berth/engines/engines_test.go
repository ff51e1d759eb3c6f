package engines

import (
	"os"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/hook/setup"
	"github.com/berth-gpu/berth/internal/testutil"
)

// TestSettingsOfAnotherUser: an engine's program that root runs under sudo reads no settings of the user, which can name
// programs to run.
func TestSettingsOfAnotherUser(t *testing.T) {
	testutil.NeedRoot(t)
	theirs, own := t.TempDir(), t.TempDir()
	testutil.Must(t, os.Chown(theirs, 4711, 4711))
	for _, name := range []string{"HOME", "DOCKER_CONFIG", "XDG_CONFIG_HOME"} {
		t.Setenv(name, theirs)
	}
	t.Setenv("XDG_RUNTIME_DIR", own)
	out, err := Run(t.Context(), "env")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out, theirs) {
		t.Errorf("the program gets a directory of another user: %s", out)
	}
	if !strings.Contains(out, "XDG_RUNTIME_DIR="+own) || !strings.Contains(out, "PATH=") {
		t.Errorf("the program doesn't get the rest of the environment: %s", out)
	}
}

// TestTemporaryDirectoryOfAnotherUser: what an engine checks isn't written to a directory whose owner can exchange the files.
func TestTemporaryDirectoryOfAnotherUser(t *testing.T) {
	testutil.NeedRoot(t)
	theirs := t.TempDir()
	testutil.Must(t, os.Chown(theirs, 4711, 4711))
	t.Setenv("TMPDIR", theirs)
	out, refusal, err := runOnFiles(t.Context(), []string{"echo", setup.Dir}, map[string][]byte{"config": nil})
	if err != nil || refusal != nil || strings.HasPrefix(out, theirs) {
		t.Errorf("%s, %v, %v", out, refusal, err)
	}
}
