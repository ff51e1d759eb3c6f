package sim

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/berth-gpu/berth/internal/lock"
)

// cacheDir is .cache/simnode of the source tree that the caller works in, or
// the user's cache outside of one.
func cacheDir() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find working directory: %w", err)
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		b, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(b), "module github.com/berth-gpu/berth\n") {
			return filepath.Join(dir, ".cache/simnode"), nil
		}
	}
	user, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find cache directory: %w", err)
	}
	return filepath.Join(user, "berth-simnode"), nil
}

// cached returns cache/name, which make fills once: other calls wait for it, and an incomplete
// directory isn't used.
func cached(cache, name string, make func(dir string) error) (path string, err error) {
	path = filepath.Join(cache, name)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := makeDirs(cache); err != nil {
		return "", err
	}
	held, err := lock.Create(context.Background(), filepath.Join(cache, "lock"), 0o600, lock.Exclusive)
	if err != nil {
		return "", fmt.Errorf("lock cache: %w", err)
	}
	defer func() { err = errors.Join(err, held.Close()) }()
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	temp, err := os.MkdirTemp(cache, "new-")
	if err != nil {
		return "", fmt.Errorf("make directory in cache: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temp)) }()
	content := filepath.Join(temp, "content")
	if err := makeDirs(content); err != nil {
		return "", err
	}
	if err := make(content); err != nil {
		return "", err
	}
	if err := os.Rename(content, path); err != nil {
		return "", fmt.Errorf("put %s into cache: %w", name, err)
	}
	return path, nil
}

// sourceHash returns a hash of the sources and of how they are built.
func sourceHash(recipe ...string) string {
	h := sha256.New()
	fmt.Fprintln(h, recipe)
	err := fs.WalkDir(sources, ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := sources.ReadFile(path)
		fmt.Fprintln(h, path, len(b))
		h.Write(b)
		return err
	})
	if err != nil {
		panic(err) // the sources are part of the program
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:8])
}

// unpackSources writes the C sources below dir.
func unpackSources(dir string) error {
	if err := os.CopyFS(dir, sources); err != nil {
		return fmt.Errorf("unpack sources: %w", err)
	}
	return nil
}

// cc compiles; it says which package has a compiler if there is none.
func cc(dir string, args ...string) error {
	compiler, err := exec.LookPath("cc")
	if err != nil {
		return errors.New("no C compiler: install one (Debian: apt-get install gcc libc6-dev)")
	}
	cmd := exec.Command(compiler, append([]string{"-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror"}, args...)...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("compile %s: %w: %s", args[len(args)-1], err, out)
	}
	return nil
}

func buildNVML(cache string) (string, error) {
	dir, err := cached(cache, "nvml-"+sourceHash("nvml"), func(dir string) error {
		if err := unpackSources(dir); err != nil {
			return err
		}
		units, err := filepath.Glob(filepath.Join(dir, "nvml/*.c"))
		if err != nil {
			return fmt.Errorf("list sources: %w", err)
		}
		return cc(dir, append([]string{
			"-shared", "-fPIC", "-s", "-Wl,-soname," + nvmlSoname, "-o", nvmlName + ".so", "-lpthread",
		}, units...)...)
	})
	return filepath.Join(dir, nvmlName+".so"), err
}

func buildMemlock(cache string) (string, error) {
	dir, err := cached(cache, "memlock-"+sourceHash("memlock"), func(dir string) error {
		if err := unpackSources(dir); err != nil {
			return err
		}
		return cc(dir, "-shared", "-fPIC", "-s", "-o", "memlock.so", "stub/memlock.c")
	})
	return filepath.Join(dir, "memlock.so"), err
}

func buildStub(cache, version string) (string, error) {
	return cached(cache, "stub-"+version+"-"+sourceHash("stub", fmt.Sprint(libraries(), platformLibraries())), func(dir string) error {
		src := filepath.Join(dir, "src")
		if err := unpackSources(src); err != nil {
			return err
		}
		for _, l := range libraries() {
			source := "stub/library.c"
			if l.name == "libcuda" {
				source = "stub/cuda.c"
			}
			if err := buildLibrary(dir, l, version, source); err != nil {
				return err
			}
		}
		for l, own := range platformLibraries() {
			if err := buildLibrary(dir, l, own, "stub/library.c"); err != nil {
				return err
			}
		}
		if err := makeDirs(filepath.Join(dir, "bin")); err != nil {
			return err
		}
		if err := cc(src, "-s", "-o", "../bin/nvidia-smi", "-ldl", "stub/nvidia-smi.c"); err != nil {
			return err
		}
		for _, name := range programs() {
			if err := cc(src, "-s", "-o", "../bin/"+name, "stub/program.c"); err != nil {
				return err
			}
		}
		return os.RemoveAll(src)
	})
}

func buildLibrary(dir string, l library, version, source string, options ...string) error {
	file := l.name + ".so." + version
	soname := l.soname
	if soname == "" {
		soname = filepath.Base(file)
	}
	target := filepath.Join(dir, "lib", file)
	if err := makeDirs(filepath.Dir(target)); err != nil {
		return err
	}
	options = append(options, "-shared", "-fPIC", "-s", "-Wl,-soname,"+soname, "-o", target, source)
	if err := cc(filepath.Join(dir, "src"), options...); err != nil {
		return err
	}
	if soname == filepath.Base(file) {
		return nil
	}
	if err := os.Symlink(filepath.Base(file), filepath.Join(filepath.Dir(target), soname)); err != nil {
		return fmt.Errorf("link: %w", err)
	}
	if base := filepath.Base(l.name) + ".so"; l.name == "libcuda" || l.name == "libnvcuvid" || l.name == "libnvidia-encode" {
		return os.Symlink(soname, filepath.Join(filepath.Dir(target), base))
	}
	return nil
}
