package backend

import (
	"errors"
	"os"
	"testing"

	"github.com/berth-gpu/berth/launcher/engine"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// TestFindTaskOfOtherEngine: the error for a task of another engine names that engine.
func TestFindTaskOfOtherEngine(t *testing.T) {
	native := tasks.Store{Data: t.TempDir(), State: t.TempDir()}
	usual, strange := engine.Store(native, ""), engine.Store(native, "/run/my.sock")
	put := func(s tasks.Store, id, name string) {
		if err := errors.Join(os.MkdirAll(s.Dir(id), 0o700), s.WriteRecord(tasks.Record{ID: id, Name: name}), s.ClaimName(name, id)); err != nil {
			t.Fatal(err)
		}
	}
	put(native, "aaaaaaaaaaaa", "own")
	put(usual, "bbbbbbbbbbbb", "train")
	put(strange, "cccccccccccc", "far")
	k := Tasks{Store: native, Native: native}
	for _, tt := range []struct{ word, want string }{
		{"train", `there is no task "train" here: it is a task of --engine containerd`},
		{"bbbbbb", `there is no task "bbbbbb" here: it is a task of --engine containerd`},
		{"far", `there is no task "far" here: it is a task of --engine containerd with the --containerd-address that it was run with`},
		{"nobody", `task "nobody": there is no such task`},
	} {
		_, err := k.Find(tt.word)
		if err == nil || err.Error() != tt.want || errors.Is(err, tasks.ErrNotFound) != (tt.word == "nobody") {
			t.Errorf("%s: %v, want %s", tt.word, err, tt.want)
		}
	}
	if _, err := k.Find("own"); err != nil {
		t.Error(err)
	}
	theirs := Tasks{Store: usual, Native: native, Engine: &Engine{}}
	for word, want := range map[string]string{"own": "native", "train": "", "nobody": ""} {
		if got := theirs.findOtherEngine(word); got != want {
			t.Errorf("%s is a task of %q, want %q", word, got, want)
		}
	}
}
