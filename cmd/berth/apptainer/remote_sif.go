package apptainer

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/rootless"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	store "github.com/berth-gpu/berth/launcher/image"
)

// sifSchemes returns the beginnings of references to SIF files that are pulled.
func sifSchemes() []string { return []string{"oras://", "library://"} }

// isRemoteSIF reports whether a word is such a reference.
func isRemoteSIF(word string) bool {
	return slices.ContainsFunc(sifSchemes(), func(s string) bool { return strings.HasPrefix(word, s) && word != s })
}

// fetchSIF pulls a SIF file into the store, unless it is there, and returns its path. Its server is asked each time.
func fetchSIF(c *cli.Context, conf berth.Config, ref string) (file string, err error) {
	if os.Geteuid() != 0 {
		err = rootless.MakeDataDir(conf)
	} else {
		err = verb.NeedHost()
	}
	if err != nil {
		return "", err
	}
	library := conf.Apptainer.Library
	if given := c.String("library"); given != "" {
		library = given
	}
	if strings.HasPrefix(ref, "library://") && library == "" {
		return "", fmt.Errorf("%s: there is no library: apptainer.library in %s names a server of such images", ref, berth.ConfigPath)
	}
	e, err := backend.NewFetcher(c, conf, store.SingleOwnerStore(conf.TaskData()))
	if err != nil {
		return "", err
	}
	req := e.Request
	req.Verb, req.Image, req.Library = "fetch-sif", ref, library
	if err := e.Call(c.Context, req, &file, printPulling(ref, time.Now())); err != nil {
		return "", fmt.Errorf("%s: %w", ref, err)
	}
	return file, nil
}

// printPulling returns a function that prints the progress of a download that takes long.
func printPulling(ref string, start time.Time) func(store.Progress) {
	last := start
	return func(p store.Progress) {
		if now := time.Now(); now.Sub(last) >= time.Second {
			last = now
			verb.PrintError(fmt.Sprintf("pulling %s: %d of %d MB", ref, p.Done>>20, p.Total>>20))
		}
	}
}

// nameSIF returns the name of the file in which a SIF file is stored that was pulled, as Apptainer has it: "container_tag.sif".
func nameSIF(ref string) string {
	base, _, _ := strings.Cut(path.Base(ref[strings.Index(ref, "//")+2:]), "@")
	name, tag, _ := strings.Cut(base, ":")
	if tag == "" {
		tag = "latest"
	}
	return name + "_" + tag + ".sif"
}

// pullSIF writes a SIF file of a registry or a library to a file.
func pullSIF(c *cli.Context, conf berth.Config, ref, to string) error {
	if to == "" {
		to = nameSIF(ref)
	}
	if dir := c.String("dir"); dir != "" {
		to = filepath.Join(dir, to)
	}
	if _, err := os.Lstat(to); err == nil && !c.Bool("force") {
		return fmt.Errorf("%s exists: --force replaces it", to)
	}
	from, err := fetchSIF(c, conf, ref)
	if err != nil {
		return err
	}
	return copySIF(from, to, c.Bool("force"))
}

// copySIF copies a file. The new one appears when it is complete, and can be executed, as Apptainer's.
func copySIF(from, to string, force bool) (err error) {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close() // only read
	temp := fmt.Sprintf("%s.%d.part", to, os.Getpid())
	dst, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o777)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	if err = errors.Join(err, dst.Close()); err == nil && force {
		err = os.Rename(temp, to)
	} else if err == nil {
		err = renameNew(temp, to)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	return nil
}

// renameNew renames a file unless there is one of the new name. On file systems that can't do that at once, such as NFS, another process may make one
// meanwhile.
func renameNew(from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	switch {
	case errors.Is(err, unix.EEXIST):
		return fmt.Errorf("%s exists: --force replaces it", to)
	case errors.Is(err, unix.EINVAL):
		return os.Rename(from, to)
	case err != nil:
		return &fs.PathError{Op: "rename", Path: from, Err: err}
	}
	return nil
}
