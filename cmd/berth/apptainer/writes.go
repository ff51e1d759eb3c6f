package apptainer

import (
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/internal/inroot"
)

// writes say what becomes of changes of the image's files.
type writes struct {
	allowed bool
	inPlace bool   // in the image, which is a directory
	dir     string // of --overlay; "" for memory
}

func chooseWrites(c *cli.Context) (w writes, err error) {
	w.inPlace = c.Bool("writable") || isSet("WRITABLE")
	w.allowed = w.inPlace || isOn(c, "writable-tmpfs") || isOn(c, "compat")
	overlays := splitWords(c, "overlay")
	if len(overlays) > 1 {
		return w, fmt.Errorf("--overlay %s: there can be one", strings.Join(overlays, ","))
	}
	for _, word := range overlays {
		dir, readOnly := strings.CutSuffix(word, ":ro")
		st, err := os.Stat(dir)
		switch {
		case err != nil:
			return w, fmt.Errorf("--overlay: %w", err)
		case !st.IsDir():
			return w, fmt.Errorf("--overlay %s: overlays are directories here, not files", word)
		}
		if w.dir, err = filepath.Abs(dir); err != nil {
			return w, err
		}
		w.allowed = !readOnly
	}
	return w, nil
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
