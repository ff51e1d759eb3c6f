package berth_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// TestKilledJobRunner: the container of a job runner that was killed keeps its GPUs, and they
// are released after the container's end.
func TestKilledJobRunner(t *testing.T) {
	testutil.NeedRoot(t, "cc", "runc", "crun", "busybox")
	bin := buildBerth(t)
	for _, p := range testutil.Pairs(t) {
		t.Run(p.Cgroup+" "+p.Runtime, func(t *testing.T) {
			t.Parallel() // a waiting request needs a while to find the holder dead
			got := inNode(t, "successor", p.Cgroup, p.Runtime, bin)
			want := account{Devices: got.Devices, Busy: "all: 8 asked, 6 of 8 free", Held: 1, Early: "refused", All: 8}
			if diff := cmp.Diff(want, got); diff != "" || len(got.Devices) != 2 {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// runAfterKilledRunner starts a job runner, kills it while its container runs, and leases its GPUs after the container's end.
func runAfterKilledRunner(runtime, dir string) (a account, err error) {
	node, err := openNode(dir)
	if err != nil {
		return a, err
	}
	endContainer, err := startAndKillRunner(runtime, dir)
	if err != nil {
		return a, err
	}
	if err := a.observeOrphan(node); err != nil {
		return a, errors.Join(err, endContainer())
	}
	if err := endContainer(); err != nil {
		return a, err
	}
	request, err := request.Parse("all")
	if err != nil {
		return a, err
	}
	ctx := context.Background()
	all, err := node.Acquire(ctx, ledger.Ask{Owner: ledger.Owner{EntryPoint: "api", Container: "successor"}, Request: request, Wait: -1})
	if err != nil {
		return a, err
	}
	a.All = len(all.Devices)
	if err := node.Release(ctx, all.ID); err != nil {
		return a, err
	}
	left, err := node.Leases()
	a.Left = len(left)
	return a, err
}

// observeOrphan fills in the account of the container whose job runner is dead.
func (a *account) observeOrphan(node *berth.Node) error {
	ctx := context.Background()
	held, err := node.Leases()
	if err != nil || len(held) != 1 {
		return fmt.Errorf("leases %v: %w", held, err)
	}
	a.Held = len(held)
	for _, d := range held[0].Devices {
		a.Devices = append(a.Devices, d.UUID)
	}
	a.Busy, err = requestWholeNode(ctx, node)
	if err != nil {
		return err
	}
	if err := node.ReleaseIfDead(ctx, held[0].ID); errors.Is(err, ledger.ErrLive) {
		a.Early = "refused"
	}
	return nil
}

// startAndKillRunner starts a job runner and kills it when its container runs. endContainer
// ends that container.
func startAndKillRunner(runtime, dir string) (endContainer func() error, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), roleVariable+"=killed "+runtime+" "+dir)
	cmd.Stderr = os.Stderr
	read, write, err := os.Pipe() // the container has one end of it
	if err != nil {
		return nil, err
	}
	cmd.Stdin = read
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := errors.Join(cmd.Start(), read.Close()); err != nil {
		return nil, err
	}
	up := false
	for lines := bufio.NewScanner(out); !up && lines.Scan(); {
		up = lines.Text() == "done"
	}
	if err := cmd.Process.Kill(); err != nil {
		return nil, err
	}
	_ = cmd.Wait() // it was killed
	if !up {
		return nil, errors.New("the container didn't start")
	}
	return write.Close, nil
}

// runUntilKilled is a job runner that is killed before its container ends.
func runUntilKilled(runtime, dir string) error {
	node, err := openNode(dir)
	if err != nil {
		return err
	}
	ctx := context.Background()
	id := fmt.Sprint("berth-api-test-", os.Getpid())
	lease, err := acquire(ctx, node, "2", ledger.Owner{EntryPoint: "api", Container: id, Bundle: dir, Cgroup: "/" + id})
	if err != nil {
		return err
	}
	if err := writeBundle(ctx, node, lease, dir, "/"+id); err != nil {
		return err
	}
	cmd := exec.Command(runtime, "--root", filepath.Join(dir, "state"), "run", "--bundle", dir, id)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd.Run()
}
