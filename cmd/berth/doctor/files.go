package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/launcher/catatonit"
	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/ociruntime"
)

// checkConfiguration reports users other than root who can write the configuration.
func (e *examination) checkConfiguration(r *report) error {
	if _, err := os.Lstat(e.ConfigPath); err != nil {
		r.ok("there is no %s: every setting has its default", e.ConfigPath)
		return nil //nolint:nilerr // the configuration is optional
	}
	e.checkOwners(r, e.ConfigPath)
	r.okUnlessReported("%s", e.ConfigPath)
	return nil
}

// program is one of berth's programs.
type program struct {
	name, path string
	// without is the function that is missing without it.
	without string
	// needed means that containers get no GPUs without it.
	needed            bool
	found, executable bool
}

// readPrograms returns berth's own programs.
func (e *examination) readPrograms() []program {
	all := []program{
		{name: "berth", path: e.Berth, needed: true},
		{name: "berth-runtime", path: e.besideHook("berth-runtime"), without: "engines have no runtime berth", needed: true},
		{name: "berth-hook", path: e.Config.HookCommand(), without: "no container gets a GPU", needed: true},
	}
	_, stale := e.readSnapshot()
	for _, p := range []program{
		{name: "berth-nvml", without: "berth discover can't call NVML, so after a boot or a change of the driver no container gets a GPU", needed: stale != nil},
		{name: "berth-monitor", without: "berth run --detach doesn't work"},
		{name: "berth-containerd", without: "no image can be pulled, and berth --engine containerd doesn't work", needed: e.Config.Run.Engine == "containerd"},
	} {
		p.path = filepath.Join(filepath.Dir(e.Berth), p.name)
		if packaged := filepath.Join(control.InstallDir, p.name); !ociruntime.IsExecutable(p.path) && ociruntime.IsExecutable(packaged) {
			p.path = packaged
		}
		all = append(all, p)
	}
	for i := range all {
		all[i].found, all[i].executable = exists(all[i].path), ociruntime.IsExecutable(all[i].path)
	}
	return all
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func (e *examination) checkPrograms(r *report) error {
	decidePrograms(r, e.readPrograms(), filepath.Dir(e.Berth))
	return nil
}

// decidePrograms reports programs that can't be run.
func decidePrograms(r *report, programs []program, dir string) {
	var names []string
	for _, p := range programs {
		names = append(names, p.name)
		fix, text := "install berth's package again", fmt.Sprintf("there is no program %s: %s", p.path, p.without)
		if p.found {
			fix, text = "chmod 0755 "+p.path, fmt.Sprintf("%s can't be run: %s", p.path, p.without)
		}
		switch {
		case p.executable:
		case p.needed:
			r.fail(fix, "%s", text)
		default:
			r.warn(fix, "%s", text)
		}
	}
	r.okUnlessReported("%s in %s", strings.Join(names, ", "), dir)
}

// checkInitProgram looks for the system's catatonit, which --init and gangs need.
func (e *examination) checkInitProgram(r *report) error {
	path, err := catatonit.Find()
	if err != nil {
		r.warn(e.installCommand("catatonit"), "%v: berth run --init and gangs don't work", err)
		return nil
	}
	e.checkOwners(r, path)
	r.okUnlessReported("%s is the first process with --init, and holds the namespaces of gangs", path)
	return nil
}

// installCommand installs a package of the distribution.
func (e *examination) installCommand(name string) string {
	for _, manager := range []string{"apt-get", "dnf", "zypper"} {
		if e.Find(manager) != "" {
			return manager + " install -y " + name
		}
	}
	return "install " + name
}

// checkProgramOwners reports users other than root who can change programs that root runs.
func (e *examination) checkProgramOwners(r *report) error {
	for _, p := range e.readPrograms() {
		e.checkOwners(r, p.path)
	}
	if e.runtime != "" {
		e.checkOwners(r, e.runtime)
	}
	r.okUnlessReported("only root can change them")
	return nil
}

// directory is one of berth's directories.
type directory struct {
	path string
	// secret means that other users must not read it.
	secret bool
	// mayBeLink means that the admin may have put a link there.
	mayBeLink bool
}

func (e *examination) directories() []directory {
	state, data := e.Config.State, e.Config.Data
	return []directory{
		{path: state, mayBeLink: true},
		{path: filepath.Join(state, "leases")},
		{path: filepath.Join(state, "attach"), secret: true},  // sockets of the tasks' terminals
		{path: filepath.Join(state, "runtime"), secret: true}, // states hold environments
		{path: data, mayBeLink: true},
		{path: filepath.Join(data, "driver")},
		{path: filepath.Join(data, "setup")},
		{path: filepath.Join(data, "engines")},
		{path: filepath.Join(data, "images"), secret: true}, // layers hold setuid programs
		{path: filepath.Join(data, "names"), secret: true},
		{path: filepath.Join(data, "tasks"), secret: true},
	}
}

// checkDirectories reports users other than root who can change berth's directories, or read
// those with secrets. A missing directory is no problem: it is created with the right mode.
func (e *examination) checkDirectories(r *report) error {
	for _, d := range e.directories() {
		var st unix.Stat_t
		err := unix.Lstat(d.path, &st)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return &fs.PathError{Op: "stat", Path: d.path, Err: err}
		}
		found := len(r.findings)
		if decideDirectory(r, d, st.Mode); len(r.findings) > found {
			continue
		}
		e.checkOwners(r, d.path)
		if len(r.findings) == found {
			decideSecret(r, d, st.Mode)
		}
	}
	r.okUnlessReported("%s and %s are root's", e.Config.State, e.Config.Data)
	return nil
}

func decideDirectory(r *report, d directory, mode uint32) {
	if mode&unix.S_IFMT != unix.S_IFDIR && !d.mayBeLink {
		r.fail("mv "+d.path+" "+d.path+".old", "%s is no directory", d.path)
	}
}

func decideSecret(r *report, d directory, mode uint32) {
	if d.secret && mode&0o077 != 0 {
		r.warn("chmod 0700 "+d.path, "%s is open to all users (mode %04o)", d.path, mode&0o7777)
	}
}

// checkOwners reports users other than root who can change or replace a file. A directory
// above several files is reported once.
func (e *examination) checkOwners(r *report, path string) {
	if strings.HasPrefix(e.User, "uid 0") {
		return // in a user namespace root may have another number
	}
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return // other checks report a missing file
	}
	for ; ; path = filepath.Dir(path) {
		var st unix.Stat_t
		if unix.Lstat(path, &st) != nil {
			return
		}
		decideOwner(r, path, st)
		if path == "/" || path == "." {
			return
		}
	}
}

// decideOwner reports users other than root who can change a file or directory. In a sticky
// directory other users can't remove root's files.
func decideOwner(r *report, path string, st unix.Stat_t) {
	writable := st.Mode & 0o022
	if st.Gid == 0 {
		writable &^= 0o020
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR && st.Mode&unix.S_ISVTX != 0 {
		writable = 0
	}
	switch fix := "chmod go-w " + path; {
	case st.Uid != 0:
		if fix = "chown root:root " + path + " && " + fix; !r.hasFix(fix) {
			r.fail(fix, "%s belongs to user %d, who can change it", path, st.Uid)
		}
	case writable != 0 && !r.hasFix(fix):
		r.fail(fix, "others can write to %s (mode %04o)", path, st.Mode&0o7777)
	}
}
