package driver

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/inroot"
	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/internal/smallfile"
)

// Build creates the directory of this driver version's files unless it exists: below data/driver,
// named by the version and a digest of what the files are (path, size, time). It returns the
// directory's path, for [Load]. It reads the host's driver root, whose links are followed inside it.
// Concurrent calls are safe: one builds and the others wait. A required library that isn't there is
// an error naming it.
//
// It also removes directories that no container can use any more, see pruneHomes. data belongs to
// one machine.
func Build(ctx context.Context, host gpu.Host, version, data string) (home string, err error) {
	b := builder{parent: filepath.Join(data, "driver"), version: version}
	home, err = b.buildHome(ctx, host)
	if err != nil {
		return "", fmt.Errorf("build directory of driver files %s: %w", version, err)
	}
	return home, nil
}

// builder is one call of Build.
type builder struct {
	parent  string
	version string
	boot    string
	root    *os.File
}

func (b builder) buildHome(ctx context.Context, host gpu.Host) (home string, err error) {
	if b.version == "" || b.version != filepath.Base(b.version) {
		return "", fmt.Errorf("%q isn't a version", b.version)
	}
	if b.boot, err = smallfile.String(host.ProcPath("sys/kernel/random/boot_id")); err != nil {
		return "", err
	}
	if b.root, err = inroot.OpenRoot(host.Driver()); err != nil {
		return "", err
	}
	defer b.root.Close() // an O_PATH descriptor
	files, err := newFinder(b.root, b.version, runtime.GOARCH).findFiles()
	if err != nil {
		return "", fmt.Errorf("driver root %s: %w", host.Driver(), err)
	}
	if err := os.MkdirAll(b.parent, 0o755); err != nil {
		return "", err
	}
	limited, cancel := context.WithTimeout(ctx, lockLimit)
	defer cancel()
	held, err := lock.Create(limited, b.parent+".lock", 0o600, lock.Exclusive)
	if err != nil {
		return "", err
	}
	defer held.Close() // nothing was written
	home = filepath.Join(b.parent, b.version+"-"+digestFiles(files))
	if err := b.ensureHome(ctx, home, files); err != nil {
		return "", err
	}
	pruneHomes(b.parent, b.boot)
	return home, nil
}

// lockLimit is more than another process takes to copy the driver's files.
const lockLimit = 10 * time.Minute

func digestFiles(files []source) string {
	h := sha256.New()
	fmt.Fprintf(h, "%d\n", schema)
	for _, s := range files {
		fmt.Fprintf(h, "%q %q %d %t %q %q %d %d\n", s.from, s.to, s.caps, s.compat32, s.destinations, s.content, s.size, s.time)
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:6])
}

// ensureHome creates the directory unless it exists undamaged. A damaged one is moved aside and not
// removed, because containers may still use it.
func (b builder) ensureHome(ctx context.Context, home string, files []source) error {
	all := listViews(b.version, files)
	if isIntact(home, all) {
		return recordBoot(home, b.boot)
	}
	temp := filepath.Join(b.parent, newPrefix+rand.Text())
	err := b.fillHome(ctx, temp, all)
	if err == nil {
		err = renameToHome(temp, home)
	}
	return errors.Join(err, os.RemoveAll(temp))
}

func isIntact(home string, all []view) bool {
	for _, v := range all {
		if _, err := loadView(home, v.name); err != nil {
			return false
		}
	}
	return true
}

// renameToHome gives the finished directory its name.
func renameToHome(temp, home string) error {
	err := os.Rename(temp, home)
	if errors.Is(err, fs.ErrExist) {
		if err := setAside(home); err != nil {
			return err
		}
		err = os.Rename(temp, home)
	}
	return errors.Join(err, syncDir(filepath.Dir(home)))
}

func (b builder) fillHome(ctx context.Context, temp string, all []view) error {
	if err := makeDirectory(temp); err != nil {
		return err
	}
	if err := recordBoot(temp, b.boot); err != nil {
		return err
	}
	copied := func(s source, dir string) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := s.copyFile(b.root, filepath.Join(dir, s.to)); err != nil {
			return err
		}
		return s.lib.linkNames(dir)
	}
	if err := copyExtras(filepath.Join(temp, extrasName), all[0].extras, copied); err != nil {
		return err
	}
	for i, v := range all {
		put := copied
		if i > 0 {
			put = linkFrom(filepath.Join(temp, all[0].name, filesName))
		}
		if err := v.makeView(temp, put); err != nil {
			return err
		}
	}
	for _, v := range all {
		if err := v.sealView(temp); err != nil {
			return err
		}
	}
	return syncAll(temp)
}

func copyExtras(dir string, extras []source, copied func(s source, dir string) error) error {
	if err := makeDirectory(dir); err != nil {
		return err
	}
	for _, s := range extras {
		if err := makeDirectories(dir, filepath.Dir(s.to)); err != nil {
			return err
		}
		if err := copied(s, dir); err != nil {
			return err
		}
	}
	return nil
}
