package containerd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	client "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/gpu/match"
	"github.com/berth-gpu/berth/launcher"
	"github.com/berth-gpu/berth/launcher/engine"
	"github.com/berth-gpu/berth/launcher/image/registry"
	"github.com/berth-gpu/berth/launcher/tasks"
)

func TestCreated(t *testing.T) {
	for _, c := range []struct {
		name, said, want string
		busy             bool
	}{
		{
			"busy", "failed to create shim task: OCI runtime create failed: berth: request 1: 1 asked, 0 of 8 free; held: GPU 0 by run x; try again when they are free: berth leases shows who holds what: unknown",
			"request 1: 1 asked, 0 of 8 free; held: GPU 0 by run x", true,
		},
		{"another reason of berth's", "failed to create shim task: OCI runtime create failed: berth: no driver: unknown", "no driver", false},
		{"the runtime's", "failed to create shim task: OCI runtime create failed: runc create failed: oh: unknown", "runc create failed: oh", false},
		{"containerd's", "ttrpc: closed", "ttrpc: closed", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := explainCreateError(errors.New(c.said))
			if err.Error() != c.want || errors.Is(err, match.ErrBusy) != c.busy {
				t.Errorf("got %q, busy %v", err, errors.Is(err, match.ErrBusy))
			}
		})
	}
}

func TestSuggestImage(t *testing.T) {
	all := []images.Image{{Name: "docker.io/library/busybox:latest"}, {Name: "reg.x/team/app:1"}, {Name: importPrefix + "app:2"}}
	for word, want := range map[string]string{
		"busybx": " (did you mean busybox?)", "busybox:lates": " (did you mean busybox:latest?)", "reg.x/team/ap:1": " (did you mean reg.x/team/app:1?)",
		"debian": "", importPrefix + "app:3": "",
	} {
		if got := suggestImage(all, word); got != want {
			t.Errorf("%s: %q, want %q", word, got, want)
		}
	}
}

func TestUnwrapClientError(t *testing.T) {
	inner := fmt.Errorf("the registry says 404: %w", registry.ErrNotFound)
	err := unwrapClientError(fmt.Errorf("failed to resolve reference %q: %w", "x", inner))
	if !errors.Is(err, registry.ErrNotFound) || err.Error() != inner.Error() {
		t.Errorf("got %q", err)
	}
}

// What people write into labels doesn't speak with containerd.
func TestLabels(t *testing.T) {
	l := launch{run: engine.Run{Options: launcher.Options{Lifecycle: launcher.Lifecycle{Labels: map[string]string{
		"a": "b", "containerd.io/restart.status": "running", "containerd.io/gc.root": "x", "berth.name": "other",
	}}}}, rec: tasks.Record{Name: "train", Image: "debian", Request: "2"}}
	want := map[string]string{"a": "b", "berth.name": "train", "berth.image": "debian", "berth.gpus": "2"}
	if diff := cmp.Diff(want, l.containerLabels()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestCheckSocket(t *testing.T) {
	dir := t.TempDir()
	dead := filepath.Join(dir, "dead.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, address, want string }{
		{"no socket", filepath.Join(dir, "none.sock"), "there is no socket"},
		{"nothing listens", dead, "nothing listens at"},
		{"no socket at all", dir, "nothing listens at"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := checkSocket(context.Background(), c.address)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v", err)
			}
		})
	}
}

// hungTask is a task whose shim doesn't answer.
type hungTask struct{ client.Task }

func (hungTask) Delete(ctx context.Context, _ ...client.ProcessDeleteOpts) (*client.ExitStatus, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// An undo that hangs ends, and says what removes the rest.
func TestUndoOfHungTask(t *testing.T) {
	l := &launch{task: hungTask{}, rec: tasks.Record{ID: "0123456789ab", Name: "train"}}
	err := l.undo(t.Context(), time.Millisecond)
	if err == nil || !strings.Contains(err.Error(), "task train after 1ms") || !strings.Contains(err.Error(), "berth --engine containerd rm -f 0123456789ab removes them") {
		t.Errorf("%v", err)
	}
}
