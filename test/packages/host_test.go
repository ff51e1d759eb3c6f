package packages

import (
	"bytes"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/test/rack"
)

// host is a server that systemd has booted.
type host struct {
	*rack.Host
	t *testing.T
}

// boot boots a server without berth, which ends with the test.
func boot(t *testing.T, suite, cgroup string) host {
	t.Helper()
	skipUnlessWanted(t)
	tree, err := rack.Tree(suite)
	testutil.Must(t, err)
	started, err := rack.Start(rack.Options{
		Tree: tree, Cgroup: cgroup, Simnode: filepath.Join(shared, "simnode"), Share: shared, Systemd: true,
		Key: strings.ReplaceAll(t.Name(), "/", "-"),
	})
	testutil.Must(t, err)
	t.Cleanup(func() { testutil.Must(t, started.Stop()) })
	// A simulated node has a file system of its own at /var/lib/berth, like a disk that the admin
	// has mounted: it stays.
	return host{started, t}
}

// run runs a command to its end, and returns its exit code and its output.
func (h host) run(words ...string) (code int, said string) {
	h.t.Helper()
	cmd := h.Command(words...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		h.t.Fatalf("%v: %v", words, err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// do runs a command that has to succeed, and returns what it prints.
func (h host) do(words ...string) string {
	h.t.Helper()
	cmd := h.Command(words...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		h.t.Fatalf("%s: %v: %s%s", strings.Join(words, " "), err, out, &errs)
	}
	return string(out)
}

// until waits for a command to succeed.
func (h host) until(words ...string) {
	h.t.Helper()
	var said string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		var code int
		if code, said = h.run(words...); code == 0 {
			return
		}
	}
	h.t.Fatalf("%s never succeeds: %s", strings.Join(words, " "), said)
}

// files lists the root file system's files, with mode, owner, size and target, without those that
// programs write while they run, and those of package managers.
func (h host) files() map[string]string {
	h.t.Helper()
	const list = `find / \( -path /proc -o -path /sys -o -path /dev -o -path '/run/*' ! -path '/run/berth*' -o -path /src -o -path /tmp -o -path /var/log \
	-o -path /var/cache -o -path /var/tmp -o -path /root -o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/lib/rpm -o -path /usr/lib/sysimage \
	-o -path /var/lib/docker -o -path /var/lib/containerd -o -path /var/lib/systemd \) -prune \
	-o -type d -printf '%p %y %#m %u:%g\n' -o -printf '%p %y %#m %u:%g %s %l\n' 2>/dev/null || true`
	all := map[string]string{}
	for line := range strings.Lines(h.do("sh", "-c", list)) {
		path, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		all[path] = rest
	}
	return all
}

// container starts a container with a lease by berth run, and returns how to ask it
// which of the node's GPUs can be opened, by the host's own nodes, and how to end it.
func (h host) container(words ...string) (opens func() string, end func()) {
	h.t.Helper()
	cmd := h.Command(words...)
	in, err := cmd.StdinPipe()
	testutil.Must(h.t, err)
	out, err := cmd.StdoutPipe()
	testutil.Must(h.t, err)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	testutil.Must(h.t, cmd.Start())
	ask := func(command string) (lines []string) {
		_, err := in.Write([]byte(command + "\n"))
		testutil.Must(h.t, err)
		var line []byte
		for one := make([]byte, 1); ; {
			if _, err := out.Read(one); err != nil {
				h.t.Fatalf("%v: %v, %v: %s", words, err, cmd.Wait(), &errs)
			}
			if one[0] != '\n' {
				line = append(line, one[0])
				continue
			}
			if string(line) == "." {
				return lines
			}
			lines, line = append(lines, string(line)), nil
		}
	}
	opens = func() (gpus string) {
		for _, n := range "01234567" {
			switch got := strings.Join(ask("open /nodes/nvidia"+string(n)), ""); got {
			case "ENXIO ENXIO ENXIO":
				gpus += string(n)
			case "EPERM EPERM EPERM":
			default:
				h.t.Errorf("nvidia%c: %s", n, got)
			}
		}
		return gpus
	}
	ended := false
	end = func() {
		if !ended {
			ended = true
			_ = in.Close() // it may have ended
			_ = cmd.Wait() // whatever the probe says
		}
	}
	h.t.Cleanup(end)
	return opens, end
}
