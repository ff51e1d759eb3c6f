package tasks

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// TestGangBarrier: a container that can't be made, however late that shows, keeps all
// others from starting.
func TestGangBarrier(t *testing.T) {
	onGangServers(t, func(t *testing.T, s server) {
		dir := t.TempDir()
		// A runtime that fails for the rank that is said, when the others are long made.
		failing := dir + "/" + s.runtime
		rig.Must(t, os.WriteFile(failing, fmt.Appendf(nil, `#!/bin/sh
			for word; do last=$word; done
			case " $* " in *" create "*) if grep -q '"RANK=1"' /var/lib/berth/tasks/$last/bundle/config.json; then sleep 1; exit 1; fi;; esac
			exec %s "$@"
			`, s.runtime), 0o700))
		id := t.TempDir() + "/id"
		got := s.RunBerth(t, "run", "--runtime", failing, "--cidfile", id, "-v", dir+":/out", "-n", "3", "--network", "none",
			rig.ImagePath(t, "busybox"), "sh", "-c", "echo > /out/started-$RANK")
		if got.Code != 125 || !strings.HasPrefix(got.Err, "berth: rank-1: ") || len(lines(strings.TrimSpace(got.Err))) != 1 {
			t.Errorf("%+v", got)
		}
		for _, rank := range []string{"0", "1", "2"} {
			if _, err := os.Stat(dir + "/started-" + rank); err == nil {
				t.Errorf("rank %s has started", rank)
			}
		}
		if text, err := os.ReadFile(id); err == nil {
			s.expectNothingLeft(t, string(text))
		}
	})
}

// TestGangStartAborted: a gang whose start is held up ends, and leaves nothing, when the command that
// starts it is killed or interrupted, its timeout is over, or it is removed.
func TestGangStartAborted(t *testing.T) {
	onGangServers(t, func(t *testing.T, s server) {
		dir := t.TempDir()
		holding := dir + "/" + s.runtime // up the second rank, whose container is never made
		rig.Must(t, os.WriteFile(holding, fmt.Appendf(nil, `#!/bin/sh
			for word; do last=$word; done
			case " $* " in *" create "*) if grep -q '"RANK=1"' /var/lib/berth/tasks/$last/bundle/config.json; then echo > %s/held; exec sleep 1000; fi;; esac
			exec %s "$@"
			`, dir, s.runtime), 0o700))
		for _, tt := range []struct {
			name  string
			flags []string
			end   func(*os.Process)
		}{
			{"killed", nil, func(p *os.Process) { rig.Must(t, p.Kill()) }},
			{"killed, of a detached one", []string{"-d"}, func(p *os.Process) { rig.Must(t, p.Kill()) }},
			{"interrupted", nil, func(p *os.Process) { rig.Must(t, p.Signal(os.Interrupt)) }},
			{"its time is over", []string{"--timeout", "1"}, func(*os.Process) {}},
			{"removed", []string{"-d"}, func(*os.Process) { s.prints(t, "held\n", "rm", "-f", "held") }},
		} {
			t.Run(tt.name, func(t *testing.T) {
				rig.Must(t, os.RemoveAll(dir+"/held"))
				id := t.TempDir() + "/id"
				words := slices.Concat([]string{"run", "--runtime", holding, "--cidfile", id, "--name", "held"}, tt.flags)
				cmd := s.Command(s.Berth, append(words, "-n", "2", "--gpus-per-rank", "1", rig.ImagePath(t, "busybox"), "sleep", "1000")...)
				rig.Must(t, cmd.Start())
				done := make(chan error, 1)
				go func() { done <- cmd.Wait() }()                                              // however it ends
				t.Cleanup(func() { s.RunBerth(t, "rm", "-f", "held"); _ = cmd.Process.Kill() }) // it has mostly ended
				rig.WaitUntil(t, "it is held up", func() bool { _, err := os.Stat(dir + "/held"); return err == nil })
				tt.end(cmd.Process)
				rig.WaitUntil(t, "berth run has ended", func() bool { return len(done) > 0 })
				rig.WaitUntil(t, "it is gone", func() bool {
					return len(lines(strings.TrimSpace(s.RunBerth(t, "ps", "-a", "--filter", "name=held").Out))) == 1
				})
				text, err := os.ReadFile(id)
				rig.Must(t, err)
				s.expectNothingLeft(t, string(text))
			})
		}
	})
}

// TestGangStartStopped: a rank that stops the other ranks before the runtime has started them doesn't keep berth run
// waiting. The gang ends with a line that says so, or at ^C.
func TestGangStartStopped(t *testing.T) {
	s := startApart(t, "v2", "runc")
	dir := t.TempDir()
	late := dir + "/runc" // starts the second rank when the first one has stopped it
	rig.Must(t, os.WriteFile(late, fmt.Appendf(nil, `#!/bin/sh
		for word; do last=$word; done
		case " $* " in *" start "*) if grep -q '"RANK=1"' /var/lib/berth/tasks/$last/bundle/config.json; then
			until [ -e %[1]s/stopped ]; do sleep 0.01; done
			echo > %[1]s/starts
		fi;; esac
		exec runc "$@"
		`, dir), 0o700))
	for _, tt := range []struct {
		name  string
		flags []string
		end   func(*os.Process)
		code  []int
		says  string
	}{
		{
			"detached",
			[]string{"-d"},
			func(*os.Process) {},
			[]int{125},
			"berth: rank-1: another process stopped it before it had started\n",
		},
		{"interrupted", nil, func(p *os.Process) { rig.Must(t, p.Signal(os.Interrupt)) }, []int{130, 125}, "berth: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rig.Must(t, os.RemoveAll(dir+"/stopped"))
			rig.Must(t, os.RemoveAll(dir+"/starts"))
			id := t.TempDir() + "/id"
			words := slices.Concat([]string{"run", "--runtime", late, "--cidfile", id, "--name", "stopping", "-v", dir + ":/out"}, tt.flags)
			cmd := s.Command(s.Berth, append(words, "-n", "2", "--network", "none", rig.ImagePath(t, "busybox"),
				"sh", "-c", "[ $RANK = 1 ] || { kill -STOP -1; echo > /out/stopped; }; sleep 1000")...)
			var said strings.Builder
			cmd.Stderr = &said
			rig.Must(t, cmd.Start())
			done := make(chan error, 1)
			go func() { done <- cmd.Wait() }()
			t.Cleanup(func() { s.RunBerth(t, "rm", "-f", "stopping"); _ = cmd.Process.Kill() }) // it has mostly ended
			rig.WaitUntil(t, "the second rank is being started", func() bool { _, err := os.Stat(dir + "/starts"); return err == nil })
			tt.end(cmd.Process)
			rig.WaitUntil(t, "berth run has ended", func() bool { return len(done) > 0 })
			if code := cmd.ProcessState.ExitCode(); !slices.Contains(tt.code, code) || !strings.HasPrefix(said.String(), tt.says) || len(lines(strings.TrimSpace(said.String()))) != 1 {
				t.Errorf("exit code %d, %q", code, said.String())
			}
			text, err := os.ReadFile(id)
			rig.Must(t, err)
			s.expectNothingLeft(t, string(text))
		})
	}
}

// TestGangCPUs: each rank runs on the CPUs near its own GPU, by a cpuset or without.
func TestGangCPUs(t *testing.T) {
	onGangServers(t, func(t *testing.T, s server) {
		got := s.runGang(t, "-n", "8", "--gpus-per-rank", "1", "--network", "none", rig.ImagePath(t, "busybox"), "sh", "-c",
			"sed -n 's/^Cpus_allowed_list:\t//p' /proc/self/status")
		var want []string
		for rank := range 8 {
			alone := s.runGang(t, "-n", "1", "--gpus-per-rank", fmt.Sprintf("device=%d", rank), "--network", "none", rig.ImagePath(t, "busybox"), "sh", "-c",
				"sed -n 's/^Cpus_allowed_list:\t//p' /proc/self/status")
			want = append(want, strings.Replace(strings.TrimSpace(alone.Out), "rank-0", fmt.Sprintf("rank-%d", rank), 1))
		}
		if !slices.Equal(sortLines(got.Out), want) || got.Code != 0 {
			t.Errorf("%+v, want %v", got, want)
		}
		if first, last := want[0][len("rank-0"):], want[7][len("rank-7"):]; runtime.NumCPU() > 1 && first == last {
			t.Errorf("GPUs 0 and 7 are both near%s", first)
		}
	})
}

// TestStartStopped: berth run -d --user ends even if a process of that user sends SIGSTOP to all of the user's processes.
func TestStartStopped(t *testing.T) {
	s := startApart(t, "v2", "runc")
	const user = "4999" // whose processes are no other test's
	for _, runtime := range []string{"crun", "runc"} {
		for range 2 {
			const stop = `$end = time + 3; while (time < $end) { opendir D, "/proc"; for (readdir D) { kill STOP => $_ if /^\d+$/ && $_ != $$ } }`
			stopper := rig.StartProcess(t, s.Command("setpriv", "--reuid", user, "--regid", user, "--clear-groups", "perl", "-e", stop))
			got := s.RunBerth(t, "run", "-d", "--name", "stopped", "--runtime", runtime, "--user", user, rig.ImagePath(t, "busybox"), "true")
			stopper.Wait(t)
			if got.Code != 0 && got != (rig.Said{Code: 125, Err: "berth: another process stopped it before it had started\n"}) {
				t.Errorf("%s: %+v", runtime, got)
			}
			s.RunBerth(t, "rm", "-f", "stopped")
		}
	}
}
