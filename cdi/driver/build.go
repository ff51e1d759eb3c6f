package driver

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/inroot"
)

// Build makes the directory of the driver's files of this version, or finds it
// made: below data/driver, named by the version and a digest of what the files are
// (path, size, time). It reads the host's driver root, whose links are followed
// inside it. Any number of builders may run at once; each gets a complete
// directory. A required library that isn't there is an error naming it.
func Build(ctx context.Context, host gpu.Host, version, data string) (Dir, error) {
	dir, err := build(ctx, host.Driver(), version, filepath.Join(data, "driver"))
	if err != nil {
		return Dir{}, fmt.Errorf("build directory of driver files %s: %w", version, err)
	}
	return dir, nil
}

func build(ctx context.Context, driverRoot, version, parent string) (Dir, error) {
	if version == "" || version != filepath.Base(version) {
		return Dir{}, fmt.Errorf("%q isn't a version", version)
	}
	root, err := inroot.OpenRoot(driverRoot)
	if err != nil {
		return Dir{}, err
	}
	defer root.Close() // an O_PATH descriptor
	files, err := find(root, version)
	if err != nil {
		return Dir{}, fmt.Errorf("driver root %s: %w", driverRoot, err)
	}
	path := filepath.Join(parent, version+"-"+digest(files))
	if d, err := Load(filepath.Join(path, filesName)); err == nil {
		return d, nil
	}
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return Dir{}, err
	}
	temp := filepath.Join(parent, ".new-"+rand.Text())
	err = fill(ctx, root, temp, version, files)
	if err == nil {
		err = settle(temp, path)
	}
	if err := errors.Join(err, os.RemoveAll(temp)); err != nil {
		return Dir{}, err
	}
	return Load(filepath.Join(path, filesName))
}

func digest(files []source) string {
	h := sha256.New()
	for _, s := range files {
		fmt.Fprintf(h, "%q %q %d %d\n", s.from, s.to, s.size, s.time)
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:6])
}

// settle gives the finished directory its name. A builder that was faster wins; a
// directory that was damaged is moved aside, for containers may still run on it.
func settle(temp, path string) error {
	err := os.Rename(temp, path)
	if err == nil || !errors.Is(err, fs.ErrExist) {
		return errors.Join(err, syncDir(filepath.Dir(path)))
	}
	if _, err := Load(filepath.Join(path, filesName)); err == nil {
		return nil
	}
	if err := setAside(path); err != nil {
		return err
	}
	if err := os.Rename(temp, path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// SetAside takes the directory whose files are at path out of use. Containers that
// run on it keep it until another one has to be set aside: who can damage one could
// fill the disk otherwise. One that is gone is no error.
func SetAside(path string) error {
	if filepath.Base(path) == filesName {
		path = filepath.Dir(path)
	}
	if err := setAside(path); err != nil {
		return fmt.Errorf("set damaged driver directory aside: %w", err)
	}
	return nil
}

func setAside(path string) error {
	earlier, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".damaged-*"))
	if err != nil {
		return err
	}
	for _, e := range earlier {
		if err := os.RemoveAll(e); err != nil {
			return err
		}
	}
	err = os.Rename(path, filepath.Join(filepath.Dir(path), ".damaged-"+rand.Text()))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func fill(ctx context.Context, root *os.File, temp, version string, files []source) error {
	shown := filepath.Join(temp, filesName)
	for _, dir := range []string{temp, shown, filepath.Join(shown, "lib64"), filepath.Join(shown, "bin")} {
		if err := mkdir(dir); err != nil {
			return err
		}
	}
	m := manifest{Schema: schema, Driver: version, Libraries: []Library{}, Programs: []Program{}}
	for _, s := range files {
		if err := ctx.Err(); err != nil {
			return err
		}
		size, err := s.take(root, shown)
		if err != nil {
			return err
		}
		if s.lib.File == "" {
			m.Programs = append(m.Programs, Program{Name: filepath.Base(s.to), Size: size})
			continue
		}
		s.lib.Size = size
		m.Libraries = append(m.Libraries, s.lib)
		if err := s.lib.link(shown); err != nil {
			return err
		}
	}
	if err := syncDirs(shown, "", "lib64", "lib", "bin"); err != nil {
		return err
	}
	var err error
	if m.Seal, err = m.sealOf(shown); err != nil {
		return err
	}
	return m.write(temp)
}

// mkdir makes a directory that containers can read, whatever the umask.
func mkdir(path string) error {
	if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return os.Chmod(path, 0o755)
}

// take copies one file. It keeps neither setuid bits nor the owner.
func (s source) take(root *os.File, temp string) (size int64, err error) {
	in, err := inroot.OpenFile(root, s.from)
	if err != nil {
		return 0, err
	}
	defer in.Close() // only read from
	to := filepath.Join(temp, s.to)
	if err := mkdir(filepath.Dir(to)); err != nil {
		return 0, err
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if size, err = clone(out, in); err != nil {
		return 0, fmt.Errorf("copy %s: %w", in.Name(), err)
	}
	if err := out.Chmod(0o755); err != nil {
		return 0, err
	}
	return size, out.Sync()
}

// clone shares the content where the file system can (btrfs, xfs), and copies it
// otherwise.
func clone(out, in *os.File) (int64, error) {
	if err := unix.IoctlFileClone(int(out.Fd()), int(in.Fd())); err == nil {
		fi, err := out.Stat()
		if err != nil {
			return 0, err
		}
		return fi.Size(), nil
	}
	return io.Copy(out, in)
}

// link makes the library's names beside it.
func (l Library) link(temp string) error {
	dir, file := filepath.Split(l.File)
	for _, name := range l.Names {
		if err := os.Symlink(file, filepath.Join(temp, dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// write is the last thing: a directory without a manifest isn't one.
func (m manifest) write(dir string) error {
	data, err := json.MarshalIndent(m, "", " ")
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, manifestName), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(data, '\n'))
	return errors.Join(err, f.Sync(), f.Close(), syncDir(dir))
}

func syncDirs(parent string, subs ...string) error {
	for _, sub := range subs {
		if err := syncDir(filepath.Join(parent, sub)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
