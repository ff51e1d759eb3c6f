package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/launcher/catatonit"
)

// configuration: root alone says what berth does.
func (e *exam) configuration(r *result) error {
	if _, err := os.Stat(e.ConfigPath); err != nil {
		r.ok("there is no %s: everything is as it is by itself", e.ConfigPath)
		return nil
	}
	before := len(r.findings)
	e.safe(r, e.ConfigPath)
	r.fine(before, "%s", e.ConfigPath)
	return nil
}

// private is where berth's internal programs are that packages bring.
const private = "/usr/lib/berth"

// program is one of berth's, and what doesn't work without it.
type program struct {
	name, path, without string
	needed              bool
}

// programs are berth's own.
func (e *exam) programs() []program {
	all := []program{
		{"berth", e.Berth, "", true},
		{"berth-runtime", e.beside("berth-runtime"), "engines have no runtime berth", true},
		{"berth-hook", e.Config.HookCommand(), "no container gets a GPU", true},
	}
	_, stale := e.snapshot()
	for _, p := range []program{
		{"berth-nvml", "", "berth discover can't ask the GPUs, so after a boot or a change of the driver no container gets one", stale != nil},
		{"berth-monitor", "", "berth run --detach doesn't work", false},
		{"berth-containerd", "", "no image can be pulled, and berth --engine containerd doesn't work", e.Config.Run.Engine == "containerd"},
	} {
		p.path = filepath.Join(filepath.Dir(e.Berth), p.name)
		if packaged := filepath.Join(private, p.name); !runs(p.path) && runs(packaged) {
			p.path = packaged
		}
		all = append(all, p)
	}
	return all
}

func runs(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0
}

// programsThere: all of berth's programs can be run.
func (e *exam) programsThere(r *result) error {
	before := len(r.findings)
	var names []string
	for _, p := range e.programs() {
		names = append(names, p.name)
		if runs(p.path) {
			continue
		}
		mend, text := "install berth's package again", fmt.Sprintf("there is no program %s: %s", p.path, p.without)
		if _, err := os.Stat(p.path); err == nil {
			mend, text = "chmod 0755 "+p.path, fmt.Sprintf("%s can't be run: %s", p.path, p.without)
		}
		if p.needed {
			r.fail(mend, "%s", text)
		} else {
			r.warn(mend, "%s", text)
		}
	}
	r.fine(before, "%s in %s", strings.Join(names, ", "), filepath.Dir(e.Berth))
	return nil
}

// initProgram: the system's catatonit is there for --init and gangs.
func (e *exam) initProgram(r *result) error {
	path, err := catatonit.Find()
	if err != nil {
		r.warn(e.installCommand("catatonit"), "%v: berth run --init and gangs don't work", err)
		return nil
	}
	before := len(r.findings)
	e.safe(r, path)
	r.fine(before, "%s is the first process with --init, and holds the namespaces of gangs", path)
	return nil
}

// installCommand installs a package of the distribution.
func (e *exam) installCommand(name string) string {
	for _, manager := range []string{"apt-get", "dnf", "zypper"} {
		if e.Find(manager) != "" {
			return manager + " install -y " + name
		}
	}
	return "install " + name
}

// programsSafe: what root runs, others can't change.
func (e *exam) programsSafe(r *result) error {
	before := len(r.findings)
	for _, p := range e.programs() {
		e.safe(r, p.path)
	}
	if e.program != "" {
		e.safe(r, e.program)
	}
	r.fine(before, "root alone can change them")
	return nil
}

// kept is a directory of berth's. secret says that users may not even look into it.
type kept struct {
	path   string
	secret bool
}

func (e *exam) directories() []kept {
	state, data := e.Config.State, e.Config.Data
	return []kept{
		{state, false},
		{filepath.Join(state, "leases"), false},
		{filepath.Join(state, "attach"), true},  // whose sockets are the tasks' terminals
		{filepath.Join(state, "runtime"), true}, // states hold environments
		{data, false},
		{filepath.Join(data, "driver"), false},
		{filepath.Join(data, "setup"), false},
		{filepath.Join(data, "engines"), false},
		{filepath.Join(data, "images"), true}, // layers hold setuid programs
		{filepath.Join(data, "names"), true},
		{filepath.Join(data, "tasks"), true},
	}
}

// permissions: berth's directories are root's. What isn't there yet is made right.
func (e *exam) permissions(r *result) error {
	before := len(r.findings)
	for _, d := range e.directories() {
		var st unix.Stat_t
		err := unix.Lstat(d.path, &st)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return &fs.PathError{Op: "stat", Path: d.path, Err: err}
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR && d.path != e.Config.State && d.path != e.Config.Data {
			r.fail("mv "+d.path+" "+d.path+".old", "%s is no directory", d.path)
			continue
		}
		found := len(r.findings)
		e.safe(r, d.path)
		if d.secret && len(r.findings) == found && st.Mode&0o077 != 0 {
			r.warn("chmod 0700 "+d.path, "%s is open to all users (mode %04o)", d.path, st.Mode&0o7777)
		}
	}
	r.fine(before, "%s and %s are root's", e.Config.State, e.Config.Data)
	return nil
}

// safe says who besides root could change a file or put another into its place. One of
// many things below the same open directory says so.
func (e *exam) safe(r *result, path string) {
	if strings.HasPrefix(e.User, "uid 0") {
		return // of a user namespace, in which owners have other numbers
	}
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return // it isn't there, which is said elsewhere
	}
	for ; ; path = filepath.Dir(path) {
		var st unix.Stat_t
		if unix.Lstat(path, &st) != nil {
			return
		}
		if mend, text, bad := judge(path, st); bad && !slices.ContainsFunc(r.findings, func(f Finding) bool { return f.Mend == mend }) {
			r.fail(mend, "%s", text)
		}
		if path == "/" || path == "." {
			return
		}
	}
}

// judge says who can change one file or directory. In a sticky directory nobody removes
// what is root's.
func judge(path string, st unix.Stat_t) (mend, text string, bad bool) {
	loose := st.Mode & 0o022
	if st.Gid == 0 {
		loose &^= 0o020 // root's group
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR && st.Mode&unix.S_ISVTX != 0 {
		loose = 0
	}
	switch {
	case st.Uid != 0:
		return "chown root:root " + path + " && chmod go-w " + path, fmt.Sprintf("%s belongs to user %d, who can change it", path, st.Uid), true
	case loose != 0:
		return "chmod go-w " + path, fmt.Sprintf("others can write to %s (mode %04o)", path, st.Mode&0o7777), true
	}
	return "", "", false
}
