package probe

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// scriptedMeter is the child's meter. For some names of devices it hangs or ends the process.
type scriptedMeter string

func (m scriptedMeter) Measure(uuids []string) []Use {
	var all []Use
	for _, uuid := range uuids {
		switch uuid {
		case "hangs":
			_ = hang(context.Background())
		case "ends":
			fmt.Fprintln(os.Stderr, "symbol lookup\nerror")
			os.Exit(3)
		case "babbles":
			fmt.Println("hello")
		}
		busy := len(uuid)
		all = append(all, Use{UUID: uuid, Memory: uint64(os.Getpid()), Total: 9, Busy: &busy})
	}
	return all
}

func TestGauge(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	g := &Gauge{Child: Child{Path: self, Env: []string{"PROBE_METER=x"}, Timeout: time.Minute}}
	defer g.Close()
	measure := func(uuids ...string) []Use {
		t.Helper()
		uses, err := g.Measure(t.Context(), uuids)
		if err != nil {
			t.Fatal(err)
		}
		return uses
	}
	if none := measure(); none != nil || g.run != nil {
		t.Errorf("nothing was asked for, and the answer is %v", none)
	}
	first := measure("a", "bb")
	two := 2
	if diff := cmp.Diff(Use{UUID: "bb", Memory: first[0].Memory, Total: 9, Busy: &two}, first[1]); diff != "" {
		t.Error(diff)
	}
	if again := measure("c"); again[0].Memory != first[0].Memory {
		t.Error("each measurement has a process of its own")
	}
	for _, c := range []struct{ device, want string }{
		{"ends", "the child ended: symbol lookup error"},
		{"babbles", "read output"},
	} {
		if _, err := g.Measure(t.Context(), []string{c.device}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.device, err, c.want)
		}
		if after := measure("d"); after[0].Memory == first[0].Memory {
			t.Errorf("%s: the same process goes on", c.device)
		}
	}
	g.Child.Timeout = 100 * time.Millisecond
	if _, err := g.Measure(t.Context(), []string{"hangs"}); err == nil || !strings.Contains(err.Error(), "no answer within 100ms") {
		t.Error(err)
	}
	g.Child.Timeout = time.Minute
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := g.Measure(ctx, []string{"hangs"}); err == nil || !strings.Contains(err.Error(), "context canceled") {
		t.Error(err)
	}
	if uses := measure("e"); !slices.ContainsFunc(uses, func(u Use) bool { return u.UUID == "e" }) {
		t.Error(uses)
	}
}
