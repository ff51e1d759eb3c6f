package apptainer

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/urfave/cli/v2"
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

// makeWorkDirs makes the directories of --workdir.
func (p *plan) makeWorkDirs() error {
	if p.workdir == "" {
		return nil
	}
	dir, err := filepath.Abs(p.workdir)
	if err != nil {
		return err
	}
	p.workdir = dir
	for name, mode := range map[string]os.FileMode{"tmp": 0o777 | os.ModeSticky, "var_tmp": 0o777 | os.ModeSticky, "home": 0o700} {
		if !p.contained {
			break
		}
		if err := os.MkdirAll(filepath.Join(dir, name), 0o750); err != nil {
			return fmt.Errorf("--workdir: %w", err)
		}
		if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
			return fmt.Errorf("--workdir: %w", err)
		}
	}
	for _, name := range p.scratch {
		if err := os.MkdirAll(filepath.Join(dir, "scratch", name), 0o750); err != nil {
			return fmt.Errorf("--workdir: %w", err)
		}
	}
	return nil
}

// mountEmpty returns the mount of an empty directory: a directory of --workdir, or a new file system in memory.
func (p *plan) mountEmpty(target, name, mode string) specs.Mount {
	if p.workdir != "" {
		return bindRecursively(filepath.Join(p.workdir, name), target, "nosuid", "nodev")
	}
	return newTmpfs(target, "mode="+mode, "size=64m")
}

// scratchMounts are the mounts of --scratch.
func (p *plan) scratchMounts() (all []specs.Mount) {
	for _, name := range p.scratch {
		all = append(all, p.mountEmpty(path.Clean("/"+name), "scratch/"+name, "750"))
	}
	return all
}
