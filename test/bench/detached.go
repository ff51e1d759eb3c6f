package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/berth-gpu/berth/test/rack"
)

const aboutDetached = "What stays on the host for %d detached containers (`run -d`, a `sleep` in busybox) that live at once, without what runs in them: the proportional set size (PSS) of all processes beside the containers that are there then and weren't before, and of those that were, docker's daemons, what they have grown by. Memory of the kernel isn't in it."

// manyDetached is the number of concurrent containers.
const manyDetached = 100

// keeper is a launcher that leaves a process behind for each container.
type keeper struct {
	name, goal  string
	start, stop []string
}

func keepers() []keeper {
	rest := []string{smallImage, "/bin/sleep", "10000"}
	limits := slices.Concat([]string{"--network", "host"}, rest)
	return []keeper{
		{"berth run -d", "a few MB", append([]string{"bin/berth", "run", "-d"}, rest...), []string{"sh", "-c", "bin/berth rm -f $(bin/berth ps -aq)"}},
		{"podman run -d", "", slices.Concat(rack.Podman("run", "-d"), rack.PodmanLimits(limits...)), rack.Podman("rm", "--all", "--force", "--time", "0")},
		{"docker run -d", "", append([]string{"docker", "run", "-d"}, limits...), []string{"sh", "-c", "docker rm -f $(docker ps -aq)"}},
	}
}

// detached compares the memory of the processes that supervise containers.
func detached(ctx context.Context, _ options) ([]section, error) {
	if err := pullSmall(ctx); err != nil {
		return nil, err
	}
	s := section{
		title: "memory of detached containers", about: fmt.Sprintf(aboutDetached, manyDetached),
		rows: [][]string{{"case", "what stays", "a container", "all", "daemons' growth", "goal"}},
	}
	for _, k := range keepers() {
		row, err := k.measure(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", k.name, err)
		}
		s.rows = append(s.rows, row)
	}
	return []section{s}, nil
}

func (k keeper) measure(ctx context.Context) (row []string, err error) {
	before, err := processes()
	if err != nil {
		return nil, err
	}
	_, err = together(ctx, 4, manyDetached, k.start)
	defer func() {
		_, e := timed(ctx, nil, k.stop...)
		err = errors.Join(err, e)
	}()
	if err != nil {
		return nil, err
	}
	time.Sleep(2 * time.Second) // time for the processes that start them to end
	after, err := processes()
	if err != nil {
		return nil, err
	}
	stays, all, grown := since(before, after)
	one := fmt.Sprintf("%.2f MB", mb(all+grown)/manyDetached)
	return []string{k.name, stays, one, fmt.Sprintf("%.0f MB", mb(all)), fmt.Sprintf("%.0f MB", mb(grown)), k.goal}, nil
}

// since returns the new processes and their memory, and by how much the memory of the others grew.
func since(before, after map[int]process) (names string, all, grown int64) {
	counts := map[string]int{}
	for pid, p := range after {
		if old, ok := before[pid]; ok && old.name == p.name {
			grown += p.pss - old.pss
		} else {
			counts[p.name]++
			all += p.pss
		}
	}
	var words []string
	for _, name := range slices.SortedFunc(maps.Keys(counts), func(a, b string) int { return cmp.Or(counts[b]-counts[a], strings.Compare(a, b)) }) {
		words = append(words, fmt.Sprintf("%d× %s", counts[name], name))
	}
	return strings.Join(words, ", "), all, grown
}

func mb(bytes int64) float64 { return float64(bytes) / 1e6 }

type process struct {
	name string
	pss  int64
}

// processes returns the processes of the host that aren't in containers.
func processes() (map[int]process, error) {
	own, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return nil, err
	}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	all := map[int]process{}
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || pid == os.Getpid() {
			continue
		}
		if ns, err := os.Readlink(dir + "/ns/pid"); err != nil || ns != own {
			continue
		}
		p, err := measured(dir)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) || err == nil && p.pss == 0 { // it has ended
			continue
		}
		if err != nil {
			return nil, err
		}
		all[pid] = p
	}
	return all, nil
}

func measured(dir string) (process, error) {
	exe, err := os.Readlink(dir + "/exe")
	if err != nil {
		return process{}, err
	}
	rollup, err := os.ReadFile(dir + "/smaps_rollup")
	if err != nil {
		return process{}, err
	}
	for line := range bytes.Lines(rollup) {
		if kb, ok := bytes.CutPrefix(line, []byte("Pss:")); ok {
			n, err := strconv.ParseInt(string(bytes.Fields(kb)[0]), 10, 64)
			return process{filepath.Base(exe), n * 1024}, err
		}
	}
	return process{}, fmt.Errorf("%s/smaps_rollup has no Pss", dir)
}
