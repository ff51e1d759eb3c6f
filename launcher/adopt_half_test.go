package launcher

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// A sweep removes what a killed launcher left half made, and keeps what a launcher that lives is
// making.
func TestAdoptSweepsHalfMade(t *testing.T) {
	store := tasks.Store{Data: t.TempDir(), State: t.TempDir()}
	boot, err := store.BootID()
	if err != nil {
		t.Fatal(err)
	}
	record := func(id string, change func(*tasks.Record)) {
		t.Helper()
		r := tasks.Record{
			ID: id, Name: id, Created: time.Now().UTC(), BootID: boot, Maker: tasks.Process{PID: 1 << 29, Start: 1}, Detached: true,
			Cgroup: tasks.CgroupParent + "/" + id, Runtime: "/usr/bin/crun", RuntimeRoot: "/run/berth/runtime/crun",
		}
		if change != nil {
			change(&r)
		}
		if err := store.WriteRecord(r); err != nil {
			t.Fatal(err)
		}
	}
	made := func(id string) string {
		t.Helper()
		for _, name := range []string{"rootfs", "upper", "work", "files", "bundle"} {
			if err := os.MkdirAll(filepath.Join(store.Dir(id), name), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		return id
	}
	// Nothing but directories, and a name.
	if err := store.ClaimName("begun", made("aaaaaaaaaaa1")); err != nil {
		t.Fatal(err)
	}
	if err := store.ClaimName("gang", "bbbbbbbbbbb1"); err != nil {
		t.Fatal(err)
	}
	// A gang that has a record already, with a rank that has and one that hasn't.
	record(made("bbbbbbbbbbb1"), func(r *tasks.Record) {
		r.Name, r.Gang = "gang", &tasks.Gang{Ranks: []string{"bbbbbbbbbbb2", "bbbbbbbbbbb3"}, Names: []string{"rank-0", "rank-1"}, Network: "none"}
	})
	record(made("bbbbbbbbbbb2"), func(r *tasks.Record) { r.Member = &tasks.Member{Gang: "bbbbbbbbbbb1", Role: "rank"} })
	made("bbbbbbbbbbb3")
	// A rank whose gang has gone.
	record(made("ccccccccccc1"), func(r *tasks.Record) { r.Member = &tasks.Member{Gang: "ccccccccccc2", Role: "rank"} })
	// Two that are being made: one holds its lock only, the other has a record too.
	record(made("ddddddddddd2"), nil)
	for _, id := range []string{made("ddddddddddd1"), "ddddddddddd2"} {
		held, err := lock.Open(context.Background(), store.Dir(id), lock.Exclusive)
		if err != nil {
			t.Fatal(err)
		}
		defer held.Close()
	}
	// One that has ended, and one whose record is damaged.
	record(made("eeeeeeeeeee1"), nil)
	if err := store.WriteExit("eeeeeeeeeee1", tasks.Exit{}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(store.Path(made("eeeeeeeeeee2"), "task.json"), []byte(`{"version":1000}`), 0o600); err != nil {
		t.Fatal(err)
	}

	gate, err := lock.Open(context.Background(), store.TasksDir(), lock.Shared) // as a launch that is about to make one
	if err != nil {
		t.Fatal(err)
	}
	look := func(want ...string) {
		t.Helper()
		if err := control.Adopt(t.Context(), store, ""); err != nil {
			t.Error(err)
		}
		if ids, err := store.IDs(); err != nil || !slices.Equal(slices.Sorted(slices.Values(ids)), want) {
			t.Errorf("there are %q, want %q, %v", ids, want, err)
		}
	}
	look("aaaaaaaaaaa1", "bbbbbbbbbbb1", "bbbbbbbbbbb2", "bbbbbbbbbbb3", "ccccccccccc1", "ddddddddddd1", "ddddddddddd2", "eeeeeeeeeee1", "eeeeeeeeeee2")
	gate.Close()
	look("ddddddddddd1", "ddddddddddd2", "eeeeeeeeeee1", "eeeeeeeeeee2")
	for _, name := range []string{"begun", "gang"} {
		if id := store.IDByName(name); id != "" {
			t.Errorf("%s is still the name of %s", name, id)
		}
	}
}
