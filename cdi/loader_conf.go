package cdi

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/inroot"
)

// writeConf adds the driver's directories to ld.so.conf.d, so that ldconfig finds them when a user
// or a package runs it in the container. If the image's ld.so.conf doesn't include that directory,
// it gets an include of berth's file.
func (p *preparation) writeConf(etc *os.File, owner inroot.Owner) error {
	if err := inroot.Mkdir(etc, "ld.so.conf.d", 0o755); err != nil {
		return err
	}
	d, err := inroot.Open(p.root, confPath+".d", unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || errors.Is(err, fs.ErrNotExist) {
		p.addNote("%s.d is no directory: a later ldconfig forgets the driver's libraries", confPath)
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close() // an O_PATH descriptor
	if err := p.includeConf(etc, owner); err != nil {
		return err
	}
	return p.updateFile(d, confLine, LoaderLine, strings.Join(p.libDirs(), "\n")+"\n", owner)
}

// includeConf makes ld.so.conf include berth's file. Without ld.so.conf and without ldconfig there
// is nothing to do.
func (p *preparation) includeConf(etc *os.File, owner inroot.Owner) error {
	conf, err := inroot.ReadFile(p.root, confPath, confLimit)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if !p.pathExists("sbin/ldconfig") && !p.pathExists("usr/sbin/ldconfig") {
			return nil
		}
	case errors.Is(err, inroot.ErrNotRegular), errors.Is(err, inroot.ErrTooLarge), errors.Is(err, unix.ELOOP):
		p.addNote("%s can't be read: a later ldconfig forgets the driver's libraries", confPath)
		return nil
	case err != nil:
		return err
	}
	if includesLoaderLine(string(conf)) {
		return nil
	}
	return inroot.Replace(etc, path.Base(confPath), append([]byte("include "+LoaderLine+"\n"), conf...), 0o644, owner)
}

// includesLoaderLine reports whether a configuration for ldconfig includes berth's file.
func includesLoaderLine(conf string) bool {
	for line := range strings.Lines(conf) {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) == 0 || words[0] != "include" {
			continue
		}
		if slices.ContainsFunc(words[1:], func(pattern string) bool {
			if !path.IsAbs(pattern) {
				pattern = path.Join(path.Dir(confPath), pattern)
			}
			ok, err := path.Match(pattern, LoaderLine)
			return ok && err == nil
		}) {
			return true
		}
	}
	return false
}

// updateFile replaces a file in an open directory unless it has this content already. name is the
// file's path in the root.
func (p *preparation) updateFile(dir *os.File, base, name, content string, owner inroot.Owner) error {
	if have, err := inroot.ReadFile(p.root, name, confLimit); err == nil && string(have) == content {
		return nil
	}
	return inroot.Replace(dir, base, []byte(content), 0o644, owner)
}
