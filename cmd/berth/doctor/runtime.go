package doctor

import (
	"cmp"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/hook/setup"
	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/isolation/cgroup"
	"github.com/berth-gpu/berth/launcher"
	"github.com/berth-gpu/berth/launcher/spec"
)

// runtimeFacts are the OCI runtime that berth-runtime executes.
type runtimeFacts struct {
	// asked is the configured runtime, "" for the default one.
	asked string
	// path is the program that was found, "" if there is none.
	path string
	// isBerth means that it is berth-runtime itself.
	isBerth bool
}

// checkRuntime looks for what berth-runtime executes, in the PATH of this process. An
// engine may have another PATH.
func (e *examination) checkRuntime(r *report) error {
	f := runtimeFacts{asked: e.Config.Runtime, path: e.Find(e.Config.Runtime)}
	if f.asked == "" {
		f.path = cmp.Or(e.Find("crun"), e.Find("runc"))
		if h, err := cgroup.Detect(e.Config.Host.Cgroup); err == nil && !h.CrunWorks(process.MayLiftMemlock(e.host.ProcPath(""))) {
			f.path = cmp.Or(e.Find("runc"), f.path)
		}
	}
	f.isBerth = isSameFile(f.path, e.besideHook("berth-runtime"))
	decideRuntime(r, f)
	if f.path != "" && !f.isBerth {
		e.runtime = f.path
	}
	return nil
}

func decideRuntime(r *report, f runtimeFacts) {
	switch {
	case f.path == "" && f.asked == "":
		r.fail("install crun or runc, or set runtime", "neither crun nor runc is installed, and no other runtime is configured")
	case f.path == "" && strings.Contains(f.asked, "/"):
		r.fail("install it, or set another runtime", "runtime names %s, which is no executable program", f.asked)
	case f.path == "":
		r.fail("install it, or set another runtime", "runtime names %s, which isn't in PATH", f.asked)
	case f.isBerth:
		r.fail("set runtime in "+r.configPath+" to the path of crun or runc", "%s is berth-runtime itself, which would call itself for ever", f.path)
	default:
		r.ok("berth-runtime becomes %s", f.path)
	}
}

func isSameFile(a, b string) bool {
	one, err := os.Stat(a)
	if err != nil {
		return false
	}
	other, err := os.Stat(b)
	return err == nil && os.SameFile(one, other)
}

// versionFacts are the version of the runtime, and the properties of the machine that
// decide whether that version works.
type versionFacts struct {
	path string
	// output is what --version prints, err why it can't be run.
	output string
	err    error
	// cgroups is the zero value if there are none.
	cgroups cgroup.Hierarchy
	// hasRunc means that runc is installed.
	hasRunc bool
	// mayLiftMemlock means that this process can lift its limit of locked memory.
	mayLiftMemlock bool
}

// isKnownRuntime reports whether the runtime is crun or runc, by its name.
func isKnownRuntime(path string) bool {
	return slices.Contains([]string{"crun", "runc"}, filepath.Base(path))
}

func (e *examination) checkRuntimeVersion(r *report) error {
	if e.runtime == "" {
		return nil // reported by runtime.program
	}
	f := versionFacts{path: e.runtime, hasRunc: e.Find("runc") != "", mayLiftMemlock: process.MayLiftMemlock(e.host.ProcPath(""))}
	words := []string{e.runtime, "--version"}
	if isKnownRuntime(e.runtime) {
		words = []string{e.runtime, "--root", "/", "--version"} // crun makes its state directory even so
	}
	f.output, f.err = e.Run(e.ctx, words...)
	if h, err := cgroup.Detect(e.Config.Host.Cgroup); err == nil {
		f.cgroups = h
	}
	decideRuntimeVersion(r, f)
	return nil
}

func decideRuntimeVersion(r *report, f versionFacts) {
	name, version := parseRuntimeVersion(f.output)
	switch {
	case f.err != nil && isKnownRuntime(f.path):
		r.fail("install it again", "%s can't be run: %v", f.path, f.err)
	case f.err != nil:
		r.warn("see whether it works: "+f.path+" --help", "%s --version: %v", f.path, f.err)
	case name == "":
		r.ok("%s doesn't print its version", f.path)
	default:
		if name == "crun" {
			decideCrun(r, f, version)
		}
		r.okUnlessReported("%s %s", name, version)
	}
}

// decideCrun reports versions of crun that fail on this machine.
func decideCrun(r *report, f versionFacts, version string) {
	other := "set runtime = \"runc\" in " + r.configPath
	if !f.hasRunc {
		other = "install runc, and " + other
	}
	switch {
	case f.cgroups.Hybrid:
		r.warn(other, "crun refuses a machine with cgroups of both versions, as this is one")
	case f.cgroups.Version == cgroup.V2 && setup.ParseVersion(version).Before("1.9") && r.user == "" && !f.mayLiftMemlock:
		r.warn("install crun 1.9 or newer, or "+other, "crun %s wants to lift its limit of locked memory, which needs CAP_SYS_RESOURCE, and this process hasn't got it", version)
	}
}

// parseRuntimeVersion reads the first line of --version: "crun version 1.8.1", "runc
// version 1.1.5+ds1".
func parseRuntimeVersion(output string) (name, version string) {
	line, _, _ := strings.Cut(output, "\n")
	if f := strings.Fields(line); len(f) >= 3 && f[1] == "version" {
		return f[0], f[2]
	}
	return "", ""
}

// checkLauncherRuntime looks for the runtime of berth run, which isn't searched in PATH.
func (e *examination) checkLauncherRuntime(r *report) error {
	path, err := launcher.ChooseRuntime(launcher.Options{Runtime: e.Config.Runtime, Cgroup: e.Config.Host.Cgroup})
	if e.User != "" && errors.Is(err, spec.ErrNotRoot) { // root of a user namespace
		return errRootOnly
	}
	decideLauncherRuntime(r, path, err)
	return nil
}

func decideLauncherRuntime(r *report, path string, err error) {
	switch {
	case errors.Is(err, launcher.ErrNoRuntime):
		r.fail("install crun or runc in a directory of the system's, or set runtime to a path", "berth run: %v", err)
	case errors.Is(err, spec.ErrNotRoot):
		r.warn("call berth outside of this container", "berth run: %v", err)
	case err == nil:
		r.ok("berth run takes %s", path)
	} // other errors concern cgroups, which have a check of their own
}

// checkTaskEngine checks whether containerd answers, if it is the engine of tasks.
func (e *examination) checkTaskEngine(r *report) error {
	if e.Config.Run.Engine != "containerd" {
		r.ok("tasks are run by berth itself")
		return nil
	}
	socket := cmp.Or(e.Config.Run.ContainerdAddress, "/run/containerd/containerd.sock")
	ctx, cancel := context.WithTimeout(e.ctx, time.Second)
	defer cancel()
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

// besideHook returns the path of a program beside berth-hook, where engines find it.
func (e *examination) besideHook(name string) string {
	return filepath.Join(filepath.Dir(e.Config.HookCommand()), name)
}
