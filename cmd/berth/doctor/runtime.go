package doctor

import (
	"cmp"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/launcher"
	"github.com/berth-gpu/berth/launcher/spec"
)

// runtimeProgram: what berth-runtime becomes, as an engine of this PATH has it.
func (e *exam) runtimeProgram(r *result) error {
	asked := e.Config.Runtime
	path := e.Find(asked)
	if asked == "" {
		path = cmp.Or(e.Find("crun"), e.Find("runc"))
	}
	switch {
	case path == "" && asked == "":
		r.fail("install crun or runc, or set runtime", "neither crun nor runc is there, and no other is configured")
	case path == "" && strings.Contains(asked, "/"):
		r.fail("install it, or set another", "%s is no program that can be run, and runtime names it", asked)
	case path == "":
		r.fail("install it, or set another", "there is no %s, which runtime names", asked)
	case same(path, e.beside("berth-runtime")):
		r.fail("set runtime in "+e.ConfigPath+" to the path of crun or runc", "%s is berth-runtime itself, which would call itself for ever", path)
	default:
		e.program = path
		r.ok("berth-runtime becomes %s", path)
	}
	return nil
}

func same(a, b string) bool {
	one, err := os.Stat(a)
	if err != nil {
		return false
	}
	other, err := os.Stat(b)
	return err == nil && os.SameFile(one, other)
}

// runtimeVersion: it can be run, and works on this machine's cgroups.
func (e *exam) runtimeVersion(r *result) error {
	if e.program == "" {
		return nil // which is said already
	}
	words, known := []string{e.program, "--version"}, slices.Contains([]string{"crun", "runc"}, filepath.Base(e.program))
	if known {
		words = []string{e.program, "--root", "/", "--version"} // crun makes the directory of its states even so
	}
	said, err := e.Run(e.ctx, words...)
	switch {
	case err != nil && known:
		r.fail("install it again", "%s can't be run: %v", e.program, err)
		return nil
	case err != nil:
		r.warn("see whether it works: "+e.program+" --help", "%s --version: %v", e.program, err)
		return nil
	}
	name, version := parseVersion(said)
	if name == "" {
		r.ok("%s says nothing of its version", e.program)
		return nil
	}
	before := len(r.findings)
	if name == "crun" {
		e.crun(r, version)
	}
	r.fine(before, "%s %s", name, version)
	return nil
}

// parseVersion reads the first line: "crun version 1.8.1", "runc version 1.1.5+ds1".
func parseVersion(said string) (name, version string) {
	line, _, _ := strings.Cut(said, "\n")
	if f := strings.Fields(line); len(f) >= 3 && f[1] == "version" {
		return f[0], f[2]
	}
	return "", ""
}

// crun says where released versions of it are known to fail.
func (e *exam) crun(r *result, version string) {
	tree, err := cgroup.Detect(e.Config.Host.Cgroup)
	if err != nil {
		return // which is said elsewhere
	}
	other := "install runc, and set runtime = \"runc\""
	if e.Find("runc") != "" {
		other = "set runtime = \"runc\""
	}
	other += " in " + e.ConfigPath
	switch {
	case tree.Hybrid:
		r.warn(other, "crun refuses a machine with cgroups of both versions, as this is one")
	case tree.Version == cgroup.V2 && older(version, 1, 9) && e.User == "" && !mayLift(e.host.ProcPath("self/status")):
		r.warn("install crun 1.9 or newer, or "+other, "crun %s wants to lift its limit of locked memory, which needs CAP_SYS_RESOURCE, and this process hasn't got it", version)
	}
}

// older says that a version is before major.minor; what can't be read isn't.
func older(version string, major, minor int) bool {
	first, rest, _ := strings.Cut(version, ".")
	second, _, _ := strings.Cut(rest, ".")
	a, err := strconv.Atoi(first)
	b, err2 := strconv.Atoi(second)
	return err == nil && err2 == nil && (a < major || a == major && b < minor)
}

// mayLift: crun before 1.9 lifts its own limit before it loads device rules.
func mayLift(status string) bool {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err == nil && limit.Max == unix.RLIM_INFINITY {
		return true
	}
	text, err := smallfile.String(status)
	for line := range strings.Lines(text) {
		if hex, ok := strings.CutPrefix(line, "CapEff:"); ok {
			mask, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			return err != nil || mask&(1<<unix.CAP_SYS_RESOURCE) != 0
		}
	}
	return err != nil
}

// launcherRuntime: what berth run takes, which PATH doesn't decide.
func (e *exam) launcherRuntime(r *result) error {
	if e.User != "" {
		r.hide()
		return nil
	}
	path, err := launcher.ChosenRuntime(launcher.Options{Runtime: e.Config.Runtime, Cgroup: e.Config.Host.Cgroup})
	switch {
	case errors.Is(err, launcher.ErrNoRuntime):
		r.fail("install crun or runc in a directory of the system's, or set runtime to a path", "berth run: %v", err)
	case errors.Is(err, spec.ErrNotRoot):
		r.warn("call berth outside of this container", "berth run: %v", err)
	case err != nil:
		return nil // of cgroups, which is said elsewhere
	default:
		r.ok("berth run takes %s", path)
	}
	return nil
}

// runEngine: where tasks are containerd's, it answers.
func (e *exam) runEngine(r *result) error {
	if e.Config.Run.Engine != "containerd" {
		r.ok("tasks are run by berth itself")
		return nil
	}
	socket := cmp.Or(e.Config.Run.ContainerdAddress, "/run/containerd/containerd.sock")
	ctx, stop := context.WithTimeout(e.ctx, time.Second)
	defer stop()
	c, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	switch {
	case err == nil:
		r.ok("tasks are run by the containerd at %s", socket)
		return c.Close()
	case errors.Is(err, unix.EACCES):
		return err
	}
	r.fail("systemctl start containerd, or set run.containerd_address", "tasks are containerd's, and none answers at %s", socket)
	return nil
}

// beside is where a program is that engines call.
func (e *exam) beside(name string) string {
	return filepath.Join(filepath.Dir(e.Config.HookCommand()), name)
}
