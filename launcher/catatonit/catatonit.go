// Package catatonit finds the installed catatonit, a small init program for containers
// (https://github.com/openSUSE/catatonit, 0.1.7 or newer). It is the first process of a task
// with --init, and it holds the namespaces of a gang.
//
// berth brings no init program of its own: podman needs the same one, and distributions
// package it for podman.
package catatonit

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// ErrMissing means that no usable catatonit is installed.
var ErrMissing = errors.New("catatonit is missing")

// directories returns podman's directories of helpers (helper_binaries_dir in containers.conf(5)),
// Fedora's own, and those of programs. PATH isn't used: the caller's environment must not decide what
// root runs.
func directories() []string {
	return []string{
		"/usr/local/libexec/podman", "/usr/local/lib/podman", "/usr/libexec/podman", "/usr/lib/podman", "/usr/libexec/catatonit",
		"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin",
	}
}

// Find returns the path of a statically linked catatonit, which runs in every image. The error Is
// ErrMissing and says what to install.
func Find() (string, error) { return findIn(directories()) }

func findIn(dirs []string) (string, error) {
	var dynamic []string
	for _, dir := range dirs {
		path := filepath.Join(dir, "catatonit")
		fi, err := os.Stat(path)
		if err != nil || !fi.Mode().IsRegular() || fi.Mode()&0o111 == 0 {
			continue
		}
		if isStatic(path) {
			return path, nil
		}
		dynamic = append(dynamic, path)
	}
	if len(dynamic) > 0 {
		return "", fmt.Errorf("%w: %s is not a static program, and wouldn't start in every image; install the distribution's package catatonit", ErrMissing, strings.Join(dynamic, ", "))
	}
	return "", fmt.Errorf("%w: install the distribution's package catatonit", ErrMissing)
}

// isStatic reports whether a program needs no dynamic loader.
func isStatic(path string) bool {
	f, err := elf.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }() // it was only read
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return false
		}
	}
	return true
}
