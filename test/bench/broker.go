package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/berth-gpu/berth/broker/client"
	"github.com/berth-gpu/berth/broker/protocol"
)

// The users of the measurement: the one that runs commands, and the first of those that ask at once.
const (
	benchUser  = 4711
	firstAsker = 10_000
)

// broker compares berth alloc as a user, by the broker, with root's, and measures many users at once.
func (b *bench) broker(ctx context.Context) ([]section, error) {
	end, err := startBroker(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	as := func(uid int, argv ...string) func(context.Context) (cost, error) {
		id := strconv.Itoa(uid)
		return func(ctx context.Context) (cost, error) {
			return timed(ctx, nil, append([]string{"setpriv", "--reuid", id, "--regid", id, "--clear-groups"}, argv...)...)
		}
	}
	const group = "/sys/fs/cgroup/berth-bench"
	if err := os.Mkdir(group, 0o755); err != nil {
		return nil, err
	}
	defer os.Remove(group) // its processes have ended
	results, err := interleave(ctx, b.rounds, []variant{
		{name: "true", run: as(0, "true")},
		{name: "a shell that moves into a cgroup", run: as(0, "sh", "-c", "echo 0 >"+group+"/cgroup.procs")},
		{name: "berth alloc 1 true, as root", run: as(0, "bin/berth", "alloc", "1", "true")},
		{name: "berth alloc 1 true, as a user", goal: "≤ 12 ms", run: as(benchUser, "bin/berth", "alloc", "1", "true")},
	})
	if err != nil {
		return nil, err
	}
	run, err := b.runAsUser(ctx, as)
	if err != nil {
		return nil, err
	}
	alloc := compare("berth alloc", "From the call to the exit of `true`, all started by setpriv. Root takes the lease itself, a user by berth-broker, which runs. Both move the command into the lease's cgroup, for which the kernel waits until every processor has passed a quiescent state (RCU).", results)
	burst, err := b.measureBurst(ctx)
	return []section{alloc, run, burst}, err
}

// runAsUser compares berth run as a user with root's.
func (b *bench) runAsUser(ctx context.Context, as func(uid int, argv ...string) func(context.Context) (cost, error)) (section, error) {
	home := filepath.Join(b.dir, "home")
	if err := errors.Join(os.Mkdir(home, 0o700), os.Chown(home, benchUser, benchUser), os.Chmod(b.dir, 0o755)); err != nil {
		return section{}, err
	}
	words := func(more ...string) []string {
		return append(append([]string{"env", "HOME=" + home, "bin/berth", "run"}, more...), "oci:.cache/image/busybox", "true")
	}
	results, err := interleave(ctx, b.rounds, []variant{
		{name: "berth run --gpus 1, as root", run: as(0, words("--gpus", "1")...)},
		{name: "berth run --gpus 1, as a user", goal: "≤ 1.3×", run: as(benchUser, words("--gpus", "1")...)},
		{name: "berth run, as root", run: as(0, words()...)},
		{name: "berth run, as a user", run: as(benchUser, words()...)},
	})
	return compare("berth run without root", "From the call to the exit of `true` in a small OCI layout that is unpacked already, all started by setpriv. A user's container is in a user namespace, with a cgroup of berth-broker's. The ratios are to root's with a GPU.", results), err
}

// startBroker starts a broker and waits until it listens.
func startBroker(ctx context.Context) (end func(), err error) {
	cmd := exec.CommandContext(ctx, "bin/berth-broker")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	end = func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		_ = cmd.Wait()
	}
	for range 200 {
		conn, err := net.Dial("unix", protocol.SocketPath("/run/berth"))
		if err == nil {
			return end, conn.Close()
		}
		time.Sleep(20 * time.Millisecond)
	}
	end()
	return nil, errors.New("berth-broker doesn't listen")
}

// measureBurst has 200 users ask the broker at the same moment, each for a NIC, of which there are enough for all.
func (b *bench) measureBurst(ctx context.Context) (section, error) {
	const users = 200
	s := section{
		title: "users at once",
		about: fmt.Sprintf("%d users, each with a process that has started and connected to nothing yet, ask the broker at the same moment for a lease of a NIC, which they share. The time is that from the call to the reply, in each process.", users),
		rows:  [][]string{{"bursts", "p50", "p99", "goal of p99"}},
	}
	var all []time.Duration
	bursts := max(1, b.rounds/10)
	for range bursts {
		took, err := askAtOnce(ctx, users)
		if err != nil {
			return s, err
		}
		all = append(all, took...)
	}
	slices.Sort(all)
	s.rows = append(s.rows, []string{strconv.Itoa(bursts), show(at(all, 0.5)), show(at(all, 0.99)), "≤ 50 ms"})
	return s, nil
}

// askAtOnce runs one burst, and returns the times of the requests.
func askAtOnce(ctx context.Context, users int) (took []time.Duration, err error) {
	askers := make([]*asker, users)
	defer func() {
		for _, a := range askers {
			if a != nil {
				a.end()
			}
		}
	}()
	for i := range askers {
		if askers[i], err = startAsker(ctx, firstAsker+i); err != nil {
			return nil, err
		}
	}
	for _, a := range askers {
		if _, err := fmt.Fprintln(a.in, "ask"); err != nil {
			return nil, err
		}
	}
	for _, a := range askers {
		line, err := a.readLine()
		if err != nil {
			return nil, err
		}
		d, err := time.ParseDuration(line)
		if err != nil {
			return nil, fmt.Errorf("user %d: %s", a.uid, line)
		}
		took = append(took, d)
	}
	return took, nil
}

// asker is a process of a user's that asks for one lease: see runAsker.
type asker struct {
	uid int
	cmd *exec.Cmd
	in  *os.File
	out *bufio.Reader
}

func startAsker(ctx context.Context, uid int) (*asker, error) {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "-ask")
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdin = r
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := errors.Join(cmd.Start(), r.Close()); err != nil {
		return nil, err
	}
	a := &asker{uid, cmd, w, bufio.NewReader(out)}
	_, err = a.readLine() // it has started
	return a, err
}

func (a *asker) readLine() (string, error) {
	line, err := a.out.ReadString('\n')
	return strings.TrimSpace(line), err
}

func (a *asker) end() {
	_ = a.in.Close() // nothing was written that isn't read
	_ = a.cmd.Wait() // its lease ends with it
}

// runAsker is the process of an asker: it asks the broker when it reads a line, prints how long that took, and ends with its input.
func runAsker(ctx context.Context) error {
	lines := bufio.NewScanner(os.Stdin)
	fmt.Println("ready")
	for lines.Scan() {
		start := time.Now()
		if _, err := client.New("/run/berth").Acquire(ctx, protocol.Acquire{Request: "nics=1", Name: "ask"}, nil); err != nil {
			return err
		}
		fmt.Println(time.Since(start))
	}
	return lines.Err()
}
