package runtimestate

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// defaultRoots returns patterns of the state directories that engines give to runtimes, and of those that
// runtimes use by themselves.
func defaultRoots() []string {
	return []string{"/run/runc", "/run/crun", "/run/docker/runtime-*/*", "/run/containerd/runc/*"}
}

// Roots lists the state directories of runtimes that exist: those that engines and runtimes use by default, and
// those that were noted in the directory links.
func Roots(links string) (all []string) {
	for _, pattern := range defaultRoots() {
		found, _ := filepath.Glob(pattern) // the patterns are well-formed
		all = append(all, found...)
	}
	noted, _ := os.ReadDir(links) // without it, none was noted
	for _, e := range noted {
		link := filepath.Join(links, e.Name())
		root, err := os.Readlink(link)
		switch {
		case err != nil || slices.Contains(all, root):
		case isDir(root):
			all = append(all, root)
		default:
			forgetRoot(link)
		}
	}
	return all
}

// rememberedFor is how long a state directory that doesn't exist stays noted: a runtime makes it after Note.
const rememberedFor = 24 * time.Hour

func forgetRoot(link string) {
	if fi, err := os.Lstat(link); err == nil && time.Since(fi.ModTime()) > rememberedFor {
		_ = os.Remove(link) // the next call tries again
	}
}

func isDir(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.IsDir()
}

// Note makes Roots list a state directory in which a runtime has containers, as a link in the directory links. It
// does nothing for a default one. root is an absolute path.
func Note(links, root string) error {
	root = filepath.Clean(root)
	for _, pattern := range defaultRoots() {
		// docker's is below /var/run, which is a link to /run.
		if ok, _ := filepath.Match(pattern, "/"+strings.TrimPrefix(root[1:], "var/")); ok { // the patterns are well-formed
			return nil
		}
	}
	name := fnv.New128a()
	_, _ = name.Write([]byte(root)) // a hash never fails
	link := filepath.Join(links, fmt.Sprintf("%x", name.Sum(nil)))
	err := os.Symlink(root, link)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(links, 0o700); err == nil {
			err = os.Symlink(root, link)
		}
	}
	if errors.Is(err, fs.ErrExist) { // it is remembered from now on
		now := unix.NsecToTimeval(time.Now().UnixNano())
		return unix.Lutimes(link, []unix.Timeval{now, now})
	}
	return err
}
