package apptainer

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cdi"
	"github.com/berth-gpu/berth/cmd/berth/helper"
	"github.com/berth-gpu/berth/cmd/berth/leasing"
	"github.com/berth-gpu/berth/cmd/berth/rootless"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/internal/inroot"
	"github.com/berth-gpu/berth/internal/userns"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/launcher"
	"github.com/berth-gpu/berth/launcher/enter"
	"github.com/berth-gpu/berth/launcher/overlay"
	"github.com/berth-gpu/berth/launcher/spec"
)

// sessionSize is how much may be written to the image's files, in bytes. Source: apptainer.conf, "sessiondir max size".
const sessionSize = 64 << 20

// becomeCommand makes the container and executes the command in it. isChild means that this process's parent is berth, too: the command ends
// with it. It returns only an error.
func becomeCommand(c *cli.Context, conf berth.Config, wanted request.Request, isChild bool) error {
	session, inNamespace, err := rootless.Open(conf)
	if err != nil {
		return err
	}
	o := launcher.Options{Request: wanted}
	if !wanted.IsZero() {
		if !inNamespace {
			session = nil
		}
		if err := leasing.Connect(c, conf, &o, session); err != nil {
			return err
		}
	}
	plan, err := newPlan(c, !wanted.IsZero())
	if err != nil {
		return err
	}
	if plan.needsFirstProcess() {
		return startFirstProcess(c, &o, plan, session, isChild)
	}
	runtime.LockOSThread() // mount namespace, privileges and parent's death belong to the thread
	if !inNamespace {
		if err := overlay.UnshareMounts(); err != nil {
			return err
		}
	}
	umask := unix.Umask(0)                      // modes are exact
	if err := plan.openWorkDirs(); err != nil { // in the mount namespace: only there it can be mounted by its descriptor
		return err
	}
	where := enter.Options{
		Session: filepath.Join(conf.TaskState(), "session"), Size: sessionSize, InPlace: plan.writes.inPlace, Writes: plan.writes.dir,
		Others: createdPaths(), Mounts: plan.systemMounts(), Later: slices.Concat(plan.scratchMounts(), plan.binds), Missing: plan.cwdMounts(),
	}
	if err := plan.openImage(session, &where); err != nil {
		return err
	}
	if err := os.MkdirAll(where.Session, 0o700); err != nil {
		return err
	}

	if err := plan.spaces.enterAll(); err != nil {
		return err
	}
	lease, err := acquireLease(c, &o, plan)
	if err != nil {
		return err
	}
	box, err := enter.Open(where)
	if errors.Is(err, enter.ErrHiddenProc) {
		return fmt.Errorf("--pid: %w", enter.ErrHiddenProc)
	}
	if err != nil {
		return err
	}
	config := &specs.Spec{
		Version: specs.Version,
		Root:    &specs.Root{Path: "/"},
		Process: &specs.Process{User: specs.User{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}, Args: plan.words, NoNewPrivileges: true, Env: plan.listDriverVariables()}, //nolint:gosec // not negative
		Linux:   &specs.Linux{Resources: &specs.LinuxResources{}},
	}
	if o.Devices != nil { // it may write there: links of the image don't lead to the host's files yet
		if _, err := o.Devices.Prepare(c.Context, lease, config, box.Root); err != nil {
			return err
		}
	}
	if err := box.MountFirst(); err != nil {
		return err
	}
	if inNamespace {
		spec.RestrictToUserNamespace(config, userns.HasGroup)
	}
	if err := plan.makeMounts(box, config); err != nil {
		return err
	}
	argv, env, err := plan.findCommand(box.Has, config.Process.Env)
	if err != nil {
		return err
	}
	if !plan.writes.allowed {
		if err := box.SetReadOnly(); err != nil {
			return err
		}
	}
	dirs := []string{plan.cwd, plan.home.inside}
	if plan.mustCwd {
		dirs = dirs[:1]
	}
	if isOn(c, "no-umask") || isOn(c, "compat") {
		umask = 0o022
	}
	at, err := box.Enter(dirs...)
	switch {
	case err != nil && plan.mustCwd:
		return fmt.Errorf("set the working directory: %w", err)
	case err != nil:
		plan.remarkDirectory(at)
	}
	unix.Umask(umask)
	verb.SettleInterrupts(c.Context) // later signals are for the command
	if err := c.Err(); err != nil {
		return err
	}
	if isChild {
		if err := endWithParent(); err != nil {
			return err
		}
	}
	switch first := os.Getenv(firstVariable); {
	case plan.instance != "":
		if err := describeInstance(first, plan, config.Process.Env); err != nil {
			return err
		}
		return enter.Exec(initPath, append([]string{"berth", initVerb, first, initStays}, argv...), env, plan.fakeroot)
	case plan.init != "":
		return enter.Exec(initPath, append([]string{"berth", initVerb, first, initEnds}, argv...), env, plan.fakeroot)
	case plan.spaces.pid:
		ready, err := openReady(first)
		if err == nil {
			err = reportReady(ready)
		}
		if err != nil {
			return err
		}
	}
	return enter.Exec(argv[0], argv, env, plan.fakeroot)
}

// createdPaths returns paths of files and mount points that berth creates in a container, besides those of mounts of the plan.
func createdPaths() []string {
	return []string{
		scriptPath, "/etc/passwd", "/etc/group", "/etc/hostname", "/etc/resolv.conf",
		// With devices.
		"/etc/ld.so.cache", "/etc/ld.so.conf.d/00-berth.conf", "/usr/local/nvidia", "/usr/bin/nvidia-smi", "/lib/firmware/nvidia", "/etc/OpenCL/vendors/nvidia.icd", cdi.NCCLTopology,
	}
}

// remarkDirectory says that the working directory is another one than the caller's.
func (p *plan) remarkDirectory(at string) {
	verb.PrintError(fmt.Sprintf("the working directory %s is not in the container; it is %s", p.cwd, at))
}

// openImage sets the image of the container: a directory, or the mount or layers that the process outside has passed on. Above it are overlays that are
// directories, unless the process outside has opened them.
func (p *plan) openImage(session *helper.Session, o *enter.Options) (err error) {
	passed := os.Getenv(imageVariable)
	if !p.writes.inFiles {
		if o.Above, err = p.writes.openAbove(); err != nil {
			return err
		}
	}
	if passed == helperImage && session != nil {
		o.Image, err = session.ReceiveFile()
		return err
	}
	if passed == directoryImage {
		o.Dir = p.image
		return nil
	}
	if strings.HasPrefix(passed, layersPrefix) {
		return p.openLayers(passed, o)
	}
	fd, err := strconv.Atoi(passed)
	if err != nil {
		return fmt.Errorf("environment variable %s: %w", imageVariable, err)
	}
	unix.CloseOnExec(fd)
	o.Image = os.NewFile(uintptr(fd), "image")
	return nil
}

func isDirectory(name string) bool {
	st, err := os.Stat(name)
	return err == nil && st.IsDir()
}

// acquireLease takes the lease, if devices are wanted.
func acquireLease(c *cli.Context, o *launcher.Options, p *plan) (ledger.Lease, error) {
	if o.Devices == nil {
		return ledger.Lease{}, nil
	}
	name := filepath.Base(p.image)
	if p.instance != "" {
		name = instanceScheme + p.instance
	}
	owner := ledger.Owner{EntryPoint: "run", Name: name, UID: os.Getuid(), Command: strings.Join(p.words, " ")}
	return o.Devices.Acquire(c.Context, owner, o.Request, func() {})
}

// makeMounts makes the container's mounts: those of the plan, and those of the spec, which are the lease's.
func (p *plan) makeMounts(box *enter.Container, config *specs.Spec) error {
	if p.contained {
		if err := box.Symlink("/dev/pts/ptmx", "/dev/ptmx"); err != nil {
			return err
		}
	}
	for name, target := range map[string]string{
		"/dev/fd": "/proc/self/fd", "/dev/stdin": "/proc/self/fd/0", "/dev/stdout": "/proc/self/fd/1", "/dev/stderr": "/proc/self/fd/2",
	} {
		if err := box.Symlink(target, name); err != nil {
			return err
		}
	}
	if err := p.mountAccounts(box); err != nil {
		return err
	}
	if err := p.mountFile(box, scriptPath, p.writeScript(), 0o600); err != nil { // with secrets of the environment
		return err
	}
	if err := box.MountLater(); err != nil {
		return err
	}
	for _, d := range config.Linux.Devices {
		if err := box.Mount(bindRecursively(d.Path, d.Path, "nosuid")); err != nil {
			return err
		}
	}
	for _, m := range config.Mounts {
		if err := box.Mount(m); err != nil {
			return err
		}
	}
	for _, name := range config.Linux.MaskedPaths {
		if err := box.Mask(name); err != nil {
			return err
		}
	}
	return nil
}

// bindRecursively returns a recursive bind mount.
func bindRecursively(source, target string, options ...string) specs.Mount {
	return specs.Mount{Type: "bind", Source: source, Destination: target, Options: append([]string{"rbind", "rslave"}, options...)}
}

func newTmpfs(target string, options ...string) specs.Mount {
	return specs.Mount{Type: "tmpfs", Destination: target, Options: append([]string{"nosuid", "nodev"}, options...)}
}

// systemMounts are the mounts that each container has.
func (p *plan) systemMounts() (all []specs.Mount) {
	add := func(name string, mounts ...specs.Mount) {
		if !slices.Contains(p.without, name) {
			all = append(all, mounts...)
		}
	}
	proc := bindRecursively("/proc", "/proc")
	if p.spaces.pid {
		proc = specs.Mount{Type: "proc", Destination: "/proc", Options: []string{"nosuid", "nodev"}}
	}
	add("proc", proc)
	add("sys", bindRecursively("/sys", "/sys"))
	if os.Geteuid() == 0 && !userns.IsInside() { // with write access, root could change the machine and leave the lease's cgroup
		for _, name := range []string{"/proc/sys", "/proc/sysrq-trigger"} {
			if _, err := os.Stat(name); err == nil {
				add("proc", bindRecursively(name, name, "ro"))
			}
		}
		add("sys", bindRecursively("/sys", "/sys", "ro"))
	}
	add("dev", newTmpfs("/dev", "mode=755", "size=64m"))
	if !slices.Contains(p.without, "dev") {
		names := []string{"null", "zero", "random", "urandom", "tty"}
		if !p.contained {
			names = append(names, "full")
		}
		for _, name := range names {
			all = append(all, bindRecursively("/dev/"+name, "/dev/"+name, "nosuid"))
		}
		if p.contained {
			if p.spaces.ipc {
				all = append(all, specs.Mount{Type: "mqueue", Destination: "/dev/mqueue", Options: []string{"nosuid", "nodev"}})
			}
			all = append(all, specs.Mount{Type: "devpts", Destination: "/dev/pts", Options: []string{"newinstance", "ptmxmode=0666", "mode=0620", "nosuid", "noexec"}}, newTmpfs("/dev/shm", "mode=1777"))
		} else {
			for _, name := range []string{"pts", "ptmx", "shm", "mqueue", "hugepages"} {
				if _, err := os.Stat("/dev/" + name); err == nil {
					all = append(all, bindRecursively("/dev/"+name, "/dev/"+name, "nosuid"))
				}
			}
		}
	}
	if p.init != "" {
		all = append(all, bindRecursively(p.init, initPath, "ro", "nosuid", "nodev"))
	}
	for _, name := range []string{"/etc/localtime", "/etc/hosts"} {
		if _, err := os.Stat(name); err == nil && !slices.Contains(p.without, "bind-paths") {
			add(name, bindRecursively(name, name, "nosuid", "nodev"))
		}
	}
	for _, name := range []string{"/tmp", "/var/tmp"} {
		if p.contained {
			add("tmp", p.mountEmpty(name, strings.ReplaceAll(name[1:], "/", "_"), "1777"))
		} else if isDirectory(name) {
			add("tmp", bindRecursively(name, name, "nosuid", "nodev"))
		}
	}
	switch {
	case p.contained && !p.home.chosen:
		add("home", p.mountEmpty(p.home.inside, "home", "755"))
	case p.home.chosen || isDirectory(p.home.outside): // some accounts have none
		_ = os.MkdirAll(p.home.outside, 0o755) // the mount's error says more
		add("home", bindRecursively(p.home.outside, p.home.inside, "nosuid", "nodev"))
	}
	return all
}

// cwdMounts is the bind mount of the caller's working directory.
func (p *plan) cwdMounts() []specs.Mount {
	// Source: apptainer(1) 1.4 as it behaves.
	ofSystem := slices.Contains([]string{"/", "/etc", "/bin", "/mnt", "/usr", "/var", "/opt", "/sbin", "/lib", "/lib64"}, p.callerCwd)
	for _, dir := range []string{"/dev/", "/proc/", "/sys/"} {
		ofSystem = ofSystem || strings.HasPrefix(p.callerCwd+"/", dir)
	}
	if p.contained || ofSystem || slices.Contains(p.without, "cwd") || !isDirectory(p.callerCwd) {
		return nil
	}
	return []specs.Mount{bindRecursively(p.callerCwd, p.callerCwd, "nosuid", "nodev")}
}

// mountAccounts mounts files in which the image's users and groups have this user too, and the resolver's file.
func (p *plan) mountAccounts(box *enter.Container) error {
	for _, f := range []struct{ name, line string }{
		{"passwd", fmt.Sprintf("%s:x:%d:%d:%s:%s:%s", p.user.name, os.Getuid(), os.Getgid(), p.user.gecos, p.home.inside, p.user.shell)},
		{"group", groupLines(p.user.name, p.groups)},
	} {
		data, err := inroot.ReadFile(box.Root, "/etc/"+f.name, maxAccounts)
		if err != nil {
			continue // an image without accounts
		}
		if err := p.mountFile(box, "/etc/"+f.name, addLines(data, f.line), 0o644); err != nil {
			return err
		}
	}
	if p.spaces.hostname != "" {
		if err := p.mountFile(box, "/etc/hostname", []byte(p.spaces.hostname+"\n"), 0o644); err != nil {
			return err
		}
	}
	resolver, err := os.ReadFile("/etc/resolv.conf")
	if len(p.dns) > 0 {
		resolver, err = []byte("nameserver "+strings.Join(p.dns, "\nnameserver ")+"\n"), nil
	}
	if err != nil {
		return nil //nolint:nilerr // the host has none
	}
	return p.mountFile(box, "/etc/resolv.conf", resolver, 0o644)
}

// maxAccounts bounds an image's /etc/passwd, in bytes.
const maxAccounts = 4 << 20

func (p *plan) mountFile(box *enter.Container, name string, data []byte, mode os.FileMode) error {
	from, err := box.WriteFile(filepath.Base(name), data, mode)
	if err != nil {
		return err
	}
	return box.Mount(bindRecursively(from, name, "nosuid", "nodev"))
}

// addLines appends lines whose first field no line has.
func addLines(data []byte, lines string) []byte {
	have := map[string]bool{}
	for scanner := bufio.NewScanner(bytes.NewReader(data)); scanner.Scan(); {
		name, _, _ := strings.Cut(scanner.Text(), ":")
		have[name] = true
	}
	if len(data) > 0 && data[len(data)-1] != '\n' {
		data = append(data, '\n')
	}
	for line := range strings.Lines(lines) {
		if name, _, _ := strings.Cut(line, ":"); !have[name] {
			data = append(data, strings.TrimSuffix(line, "\n")+"\n"...)
		}
	}
	return data
}

// groupLines returns the lines of /etc/group for groups of the host, of which the user is a member.
func groupLines(name string, ids []int) (lines string) {
	for _, id := range ids {
		lines += fmt.Sprintf("%s:x:%d:%s\n", groupName(id), id, name)
	}
	return lines
}

// groupName returns the host's name of a group, or its number.
func groupName(id int) string {
	if g, err := user.LookupGroupId(strconv.Itoa(id)); err == nil {
		return g.Name
	}
	return strconv.Itoa(id)
}
