package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// container takes a lease and makes a container of it, as an OCI runtime does: a process in a
// cgroup of its own, which waits for its start, and a pid file. Then the process that created it
// ends, or waits for the container's end.
func (w *worker) container(a ledger.Ask) error {
	ctx := context.Background()
	w.n++
	id := fmt.Sprintf("c%d-%d", os.Getpid(), w.n)
	a.Owner.Container, a.Owner.Cgroup = id, w.scene.group+"/"+id
	a.Owner.PIDFile, a.Owner.RuntimeRoot = w.scene.path("pids", id), w.scene.path("none")
	lease, err := w.acquire(ctx, a)
	if err != nil || lease.ID == "" {
		return err
	}
	c, err := w.start(lease)
	if err != nil {
		return fmt.Errorf("lease %s: %w", lease.ID, err)
	}
	w.stats.containers.Add(1)
	switch rand.IntN(4) {
	case 0: // as "create" ends: the next acquire binds the lease
		w.stats.left.Add(1)
		killSelf()
	case 1:
		w.stats.bound.Add(1)
		if err := w.ledger.Bind(ctx, lease.ID, ledger.Owner{Process: ledger.Process{PID: c.Process.Pid}, Cgroup: lease.Owner.Cgroup}); err != nil {
			return err
		}
	}
	if rand.IntN(2) == 0 {
		_ = c.Process.Kill() // it may have ended by itself
	}
	_ = c.Wait() // killed or ended, both are fine
	if rand.IntN(3) == 0 {
		return nil // delete isn't called
	}
	// As in a runtime's delete, the cgroup's processes end before the lease.
	short, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := w.scene.tree.Kill(short, lease.Owner.Cgroup); err != nil {
		return err
	}
	if err := w.release(ctx, lease.ID); err != nil {
		return err
	}
	return w.scene.tree.Remove(short, lease.Owner.Cgroup)
}

// start makes the container's process. It isn't told to go on before it is in its
// cgroup; if the worker is killed first, it ends without having touched a device.
func (w *worker) start(lease ledger.Lease) (*exec.Cmd, error) {
	tree, group := w.scene.tree, lease.Owner.Cgroup
	if err := tree.Create(group); err != nil {
		return nil, err
	}
	args := []string{roleArg, "container", w.scene.dir}
	for _, d := range lease.Devices {
		args = append(args, d.UUID+","+d.Parent)
	}
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Args[0] = os.Args[0]
	cmd.Stderr = os.Stderr
	orders, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	reports, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if tree.Version == cgroup.V2 {
		dir, err := tree.OpenDir(group)
		if err != nil {
			return nil, err
		}
		defer dir.Close()
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if tree.Version == cgroup.V1 {
		if err := tree.Join(group, cmd.Process.Pid); err != nil {
			return nil, err
		}
	}
	if _, err := io.WriteString(orders, "go\n"); err != nil && !errors.Is(err, syscall.EPIPE) {
		return nil, err
	}
	if rand.IntN(15) == 0 {
		w.stats.selfKills.Add(1)
		killSelf() // only the cgroup shows that the container runs
	}
	if err := os.WriteFile(lease.Owner.PIDFile, []byte(strconv.Itoa(cmd.Process.Pid)), 0o644); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(reports).ReadString('\n')
	if errors.Is(err, io.EOF) { // killed from outside before it could report
		return cmd, nil
	}
	if err == nil && line != "holding\n" {
		err = fmt.Errorf("%w: %s", errDouble, strings.TrimSpace(line))
	}
	return cmd, err
}

// runContainer is the container: it locks its devices and lives for a moment.
func runContainer(dir string, devices []string) error {
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return nil // the creating process is dead
	}
	var ds []gpu.Device
	for _, d := range devices {
		uuid, parent, _ := strings.Cut(d, ",")
		ds = append(ds, gpu.Device{UUID: uuid, Parent: parent})
	}
	held, err := scene{dir: dir}.hold(ds)
	if err != nil {
		if werr := os.WriteFile(filepath.Join(dir, "violation"), []byte(err.Error()), 0o644); werr != nil {
			return werr
		}
		fmt.Println(err)
		return err
	}
	fmt.Println("holding")
	time.Sleep(time.Duration(rand.IntN(60)) * time.Millisecond)
	if rand.IntN(3) == 0 {
		return startSurvivor(held)
	}
	return held.drop()
}

// startSurvivor leaves a process in the cgroup that holds the devices after init has ended.
func startSurvivor(held locks) error {
	cmd := exec.Command("sleep", "0.05")
	cmd.ExtraFiles = held
	return cmd.Start()
}
