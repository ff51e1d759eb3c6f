package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

// The user who runs SIF files is benchUser. Its home directory and the image are in memory.
const (
	sifHome  = "/home/ann"
	sifImage = "/images/image.sif"
)

// settleUsers completes a host of the tree users: what udev makes, a user, berth, and a SIF file that Apptainer builds of
// Debian's image with its defaults.
const settleUsers = `chmod 666 /dev/fuse
for fd in 0:stdin 1:stdout 2:stderr; do ln -s /proc/self/fd/${fd%:*} /dev/${fd#*:}; done
ldconfig
mkdir -p /images
mount -t tmpfs -o mode=755 tmpfs /home
mount -t tmpfs -o mode=755 tmpfs /images
useradd --uid 4711 --user-group --create-home --home-dir /home/ann --shell /bin/sh ann
cp bin/berth bin/berth-* /usr/local/bin
cp -r .cache/image/debian /images/layout
chown -R ann: /images
berth discover --quiet
cd /images
HOME=/home/ann setpriv --reuid ann --regid ann --init-groups apptainer --silent build image.sif oci:layout >build.log 2>&1 || { cat build.log >&2; exit 1; }
`

// readyUsers prepares a host with Apptainer. There are no engines.
func readyUsers(ctx context.Context) error {
	_, err := timed(ctx, nil, "sh", "-ec", settleUsers)
	return err
}

// launcher is a program with Apptainer's verbs.
type launcher struct {
	name  string
	words []string
	// warm is set if the user's mount of the image is there before.
	warm bool
}

var (
	realApptainer = launcher{name: "apptainer exec", words: []string{"apptainer", "--silent", "exec"}}
	berthCold     = launcher{name: "berth apptainer exec, cold", words: []string{"/usr/local/bin/berth", "apptainer", "exec"}}
	berthWarm     = launcher{name: "berth apptainer exec, warm", words: berthCold.words, warm: true}
)

// listWords returns the words that run a command of the image as the user. flags are in front of the image.
func (l launcher) listWords(flags []string, command ...string) []string {
	id := strconv.Itoa(benchUser)
	words := []string{"env", "-C", sifHome, "HOME=" + sifHome, "setpriv", "--reuid", id, "--regid", id, "--clear-groups"}
	for _, more := range [][]string{l.words, flags, {sifImage}, command} {
		words = append(words, more...)
	}
	return words
}

// prepareStart ends all processes of the user, and mounts the image for a warm start.
func (l launcher) prepareStart(ctx context.Context) error {
	if err := endUser(ctx); err != nil || !l.warm {
		return err
	}
	_, err := timed(ctx, nil, l.listWords(nil, "true")...)
	return err
}

const aboutSIF = "From the call to the exit of `true` in the same SIF file, Debian's image as %s builds it, as a user without root; all files are in memory; %d rounds. Apptainer mounts the image for each command. berth mounts it for the first (cold); those that follow within ten seconds share the mount (warm). With `--nv` Apptainer binds the libraries that it finds and gives all GPUs, berth leases one by berth-broker, which runs, and moves the command into the lease's cgroup. CPU is that of the command and its children, without squashfuse_ll where that outlives them. setpriv and env are in the times of all (2 ms)."

// compareApptainers compares berth apptainer exec with Debian's Apptainer.
func compareApptainers(ctx context.Context, o options) ([]section, error) {
	end, err := startBroker(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	start, err := compareStarts(ctx, o)
	if err != nil {
		return nil, err
	}
	many, err := compareMany(ctx, o)
	if err != nil {
		return nil, err
	}
	memory, err := compareMemory(ctx)
	return []section{start, many, memory}, errors.Join(err, endUser(ctx))
}

func compareStarts(ctx context.Context, o options) (section, error) {
	way := func(l launcher, goal string, flags ...string) variant {
		name := l.name
		for _, flag := range flags {
			name += ", " + flag
		}
		return variant{name: name, goal: goal, run: func(ctx context.Context) (cost, error) {
			if err := l.prepareStart(ctx); err != nil {
				return cost{}, err
			}
			return timed(ctx, nil, l.listWords(flags, "true")...)
		}}
	}
	results, err := interleave(ctx, o.rounds, []variant{
		way(realApptainer, ""), way(berthCold, ""), way(berthWarm, ""),
		way(realApptainer, "", "--nv"), way(berthCold, "", "--nv"), way(berthWarm, "", "--nv"),
	})
	if err != nil {
		return section{}, err
	}
	s := section{
		title: "berth apptainer exec", about: fmt.Sprintf(aboutSIF, firstLine("apptainer", "--version"), o.rounds),
		rows: [][]string{{"case", "median", "p95", "CPU", "against apptainer exec"}},
	}
	for i, r := range results {
		against := "-"
		if i%3 > 0 {
			against = difference(r, results[i/3*3]) // Apptainer's with the same flags
		}
		s.rows = append(s.rows, []string{r.name, show(r.median()), show(at(r.walls, 0.95)), show(at(r.cpus, 0.5)), against})
	}
	return s, nil
}

const aboutManySIF = "%d commands `true` in the same SIF file by one user, so many of them on their way at any time; all succeed. Commands a second, and the ratio to Apptainer's; the batches take turns. With `--nv`, berth's commands wait in the queue (`--wait`, of which a user may have %d) for a GPU of their own, and Apptainer's have all GPUs at the same time."

// mostWaiting is the number of requests that berth-broker lets a user have in the queue.
const mostWaiting = 32

// compareMany compares the number of commands per second.
func compareMany(ctx context.Context, o options) (section, error) {
	s := section{
		title: "berth apptainer exec, many at once", about: fmt.Sprintf(aboutManySIF, burst, mostWaiting),
		rows: [][]string{{"in flight", "flags", realApptainer.name, "berth, cold", "ratio", "berth, warm", "ratio"}},
	}
	launchers := []launcher{realApptainer, berthCold, berthWarm}
	for _, flag := range []string{"", "--nv"} {
		flight := burst
		if flag != "" {
			flight = mostWaiting
		}
		order := []int{0, 1, 2, 2, 1, 0}
		if o.rounds < 20 {
			order = order[:len(launchers)]
		}
		var took [3]time.Duration
		for _, which := range order {
			l := launchers[which]
			if err := l.prepareStart(ctx); err != nil {
				return s, err
			}
			d, err := together(ctx, flight, burst, l.listWords(manyFlags(l, flag), "true"))
			if err != nil {
				return s, fmt.Errorf("%s %s, %d at once: %w", l.name, flag, flight, err)
			}
			took[which] += d
		}
		rate := func(i int) string {
			return fmt.Sprintf("%.1f/s", float64(len(order)/len(launchers)*burst)/took[i].Seconds())
		}
		ratio := func(i int) string { return fmt.Sprintf("%.2f×", took[0].Seconds()/took[i].Seconds()) }
		s.rows = append(s.rows, []string{strconv.Itoa(flight), flag, rate(0), rate(1), ratio(1), rate(2), ratio(2)})
	}
	return s, nil
}

func manyFlags(l launcher, flag string) []string {
	switch {
	case flag == "":
		return nil
	case l.name == realApptainer.name:
		return []string{flag}
	}
	return []string{flag, "--wait"}
}

const aboutMemorySIF = "The proportional set size (PSS) of all processes that are there while so many commands `sleep` run in the same SIF file by one user: launchers, FUSE servers and the commands themselves. berth-broker's growth isn't in it, nor is memory of the kernel."

// compareMemory compares the memory of commands that run.
func compareMemory(ctx context.Context) (section, error) {
	s := section{
		title: "memory of berth apptainer exec", about: aboutMemorySIF,
		rows: [][]string{{"commands", "case", "processes", "all", "a command", "against apptainer exec"}},
	}
	for _, tt := range []struct {
		count int
		flag  string
	}{{1, ""}, {burst, ""}, {1, "--nv"}, {8, "--nv"}} {
		var theirs int64
		for _, l := range []launcher{realApptainer, berthCold} {
			var flags []string
			if tt.flag != "" {
				flags = []string{tt.flag}
			}
			names, all, err := measureRunning(ctx, l, tt.count, flags)
			if err != nil {
				return s, fmt.Errorf("%s %s: %w", l.name, tt.flag, err)
			}
			name, against := "apptainer exec", "-"
			if l.name == realApptainer.name {
				theirs = all
			} else {
				name, against = "berth apptainer exec", fmt.Sprintf("%.2f×", float64(all)/float64(theirs))
			}
			if tt.flag != "" {
				name += " " + tt.flag
			}
			s.rows = append(s.rows, []string{strconv.Itoa(tt.count), name, names, fmt.Sprintf("%.1f MB", mb(all)), fmt.Sprintf("%.2f MB", mb(all)/float64(tt.count)), against})
		}
	}
	return s, nil
}

// measureRunning starts commands at once, and returns the processes and their memory when all run.
func measureRunning(ctx context.Context, l launcher, count int, flags []string) (names string, all int64, err error) {
	if err := endUser(ctx); err != nil {
		return "", 0, err
	}
	before, err := processes()
	if err != nil {
		return "", 0, err
	}
	words := l.listWords(flags, "sleep", "10000")
	commands := make([]*exec.Cmd, 0, count)
	defer func() {
		err = errors.Join(err, endUser(ctx))
		for _, cmd := range commands {
			_ = cmd.Wait() // it was killed
		}
	}()
	for range count {
		cmd := exec.CommandContext(ctx, words[0], words[1:]...)
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			return "", 0, err
		}
		commands = append(commands, cmd)
	}
	for range 600 {
		time.Sleep(100 * time.Millisecond)
		after, err := processes()
		if err != nil {
			return "", 0, err
		}
		sleeping := 0
		for _, p := range after {
			if p.name == "sleep" {
				sleeping++
			}
		}
		if sleeping < count {
			continue
		}
		time.Sleep(time.Second) // what started them ends
		if after, err = processes(); err != nil {
			return "", 0, err
		}
		names, all, _ = since(before, after)
		return names, all, nil
	}
	return "", 0, errors.New("not all commands run")
}

// endUser kills all processes of the user, and waits until they have ended. The host has a PID namespace of its own.
func endUser(ctx context.Context) error {
	id := strconv.Itoa(benchUser)
	for range 500 {
		some, err := userRuns()
		if err != nil || !some {
			return err
		}
		// The shell itself isn't killed.
		if _, err := timed(ctx, nil, "setpriv", "--reuid", id, "--regid", id, "--clear-groups", "sh", "-c", "kill -9 -1 || :"); err != nil {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
	return errors.New("processes of the user don't end")
}

// userRuns reports whether the user has a process, zombies aside, for which their parents will wait.
func userRuns() (bool, error) {
	files, err := filepath.Glob("/proc/[0-9]*/status")
	if err != nil {
		return false, err
	}
	mark := fmt.Appendf(nil, "\nUid:\t%d\t", benchUser)
	for _, file := range files {
		if data, err := os.ReadFile(file); err == nil && bytes.Contains(data, mark) && !bytes.Contains(data, []byte("\nState:\tZ")) { // another has ended
			return true, nil
		}
	}
	return false, nil
}
