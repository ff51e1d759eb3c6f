package apptainer

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/inroot"
	"github.com/berth-gpu/berth/launcher/enter"
)

// writes say what becomes of changes of the image's files.
type writes struct {
	allowed bool
	inPlace bool   // in the image, which is a directory
	dir     string // of --overlay; "" for memory
	above   []overlayWord
	// inFiles means that one of above is a file. The process outside opens all of above then: see addOverlays.
	inFiles bool
	opened  []*os.File // of openAboveDir
}

// overlayWord is a word of --overlay, without a directory that is written to.
type overlayWord struct {
	path     string
	isDir    bool
	readOnly bool
}

func chooseWrites(c *cli.Context) (w writes, err error) {
	w.inPlace = isOn(c, "writable")
	w.allowed = w.inPlace || isOn(c, "writable-tmpfs") || isOn(c, "compat")
	for _, word := range splitWords(c, "overlay") {
		name, readOnly := strings.CutSuffix(word, ":ro")
		name = strings.TrimSuffix(name, ":rw")
		st, err := os.Stat(name)
		if err != nil {
			return w, fmt.Errorf("--overlay: %w", err)
		}
		if !st.IsDir() && !st.Mode().IsRegular() {
			return w, fmt.Errorf("--overlay %s: it is neither a file nor a directory", word)
		}
		if name, err = filepath.Abs(name); err != nil {
			return w, err
		}
		if st.IsDir() && !readOnly {
			if w.dir != "" {
				return w, fmt.Errorf("--overlay %s: changes can be kept in one overlay; the others are DIR:ro", word)
			}
			w.dir, w.allowed = name, true
			continue
		}
		w.above = append(w.above, overlayWord{name, st.IsDir(), readOnly})
		w.inFiles = w.inFiles || !st.IsDir()
	}
	slices.Reverse(w.above) // the last one hides the others
	return w, nil
}

// openAbove opens the directories of --overlay that aren't written to. No link in them is followed: they may be another user's.
func (w *writes) openAbove() (all []enter.Overlay, err error) {
	for _, o := range w.above {
		dir, err := w.openAboveDir(o.path)
		if err != nil {
			return nil, err
		}
		all = append(all, enter.Overlay{Dir: dir})
	}
	return all, nil
}

// openAboveDir opens such a directory, and returns the path of its files, which is valid as long as this process runs its program.
func (w *writes) openAboveDir(path string) (string, error) {
	dir, err := inroot.OpenRoot(path)
	if err != nil {
		return "", fmt.Errorf("--overlay: %w", err)
	}
	upper, err := inroot.Open(dir, "upper", unix.O_NOFOLLOW|unix.O_DIRECTORY)
	if err := errors.Join(err, dir.Close()); err != nil {
		return "", fmt.Errorf("--overlay %s: %w", path, err)
	}
	w.opened = append(w.opened, upper)
	return fmt.Sprintf("/proc/self/fd/%d", upper.Fd()), nil
}

// workDirs are the directories of --workdir that have taken the place of file systems in memory, by their names.
type workDirs map[string]*os.File

// openWorkDirs makes and opens the directories of --workdir. That directory may be another user's: no link in it is followed, and existing directories keep
// their modes.
func (p *plan) openWorkDirs() error {
	if p.workdir == "" {
		return nil
	}
	modes := map[string]os.FileMode{}
	if p.contained {
		modes = map[string]os.FileMode{"tmp": 0o777 | os.ModeSticky, "var_tmp": 0o777 | os.ModeSticky, "home": 0o700}
	}
	for _, name := range p.scratch {
		modes[scratchName(name)] = 0o750
	}
	for under, dir := range map[string]string{"/tmp/": "tmp", "/var/tmp/": "var_tmp"} { // no mount point is made in a directory of the host's
		if rest, found := strings.CutPrefix(p.home.inside, under); found && p.contained {
			modes[path.Join(dir, rest)] = 0o755
		}
	}
	if err := os.MkdirAll(p.workdir, 0o750); err != nil {
		return fmt.Errorf("--workdir: %w", err)
	}
	root, err := inroot.OpenRoot(p.workdir)
	if err != nil {
		return fmt.Errorf("--workdir: %w", err)
	}
	defer root.Close() // an O_PATH descriptor
	p.opened = workDirs{}
	for _, name := range slices.Sorted(maps.Keys(modes)) { // a directory before those in it
		if p.opened[name], err = makeDirs(root, name, modes[name]); err != nil {
			return fmt.Errorf("--workdir: %w", err)
		}
	}
	return nil
}

// makeDirs opens a directory below root, and makes what is missing of its path.
func makeDirs(root *os.File, name string, mode os.FileMode) (dir *os.File, err error) {
	parent, base := path.Split(name)
	if parent != "" {
		if root, err = makeDirs(root, path.Clean(parent), 0o750); err != nil {
			return nil, err
		}
		defer root.Close() // an O_PATH descriptor
	}
	return inroot.MakeDir(root, base, mode)
}

// scratchName is the name of a directory of --scratch in that of --workdir.
func scratchName(name string) string { return path.Join("scratch", path.Clean("/"+name)) }

// mountEmpty returns the mount of an empty directory: a directory of --workdir, or a new file system in memory.
func (p *plan) mountEmpty(target, name, mode string) specs.Mount {
	if dir := p.opened[name]; dir != nil {
		return bindRecursively(fmt.Sprintf("/proc/self/fd/%d", dir.Fd()), target, "nosuid", "nodev")
	}
	return newTmpfs(target, "mode="+mode, "size=64m")
}

// scratchMounts are the mounts of --scratch.
func (p *plan) scratchMounts() (all []specs.Mount) {
	for _, name := range p.scratch {
		all = append(all, p.mountEmpty(path.Clean("/"+name), scratchName(name), "750"))
	}
	return all
}
