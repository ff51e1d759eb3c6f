package hook

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/hook/bundle"
	"github.com/berth-gpu/berth/internal/json"
)

// stateLimit is the most bytes of state that are read. The state has all annotations of
// the container, which engines limit to far less.
const stateLimit = 4 << 20

// container is a container that is being created.
type container struct {
	specs.State
	spec *specs.Spec
	root string
}

// readContainer reads state and spec of the container. The spec is the one that the
// runtime reads.
func (h Hook) readContainer(state io.Reader) (c container, err error) {
	if c.State, err = readCreatingState(state); err != nil {
		return c, err
	}
	if err := hasBundle(c.State); err != nil {
		return c, err
	}
	if c.spec, err = readSpec(c.Bundle); err != nil {
		return c, err
	}
	path := ""
	if c.spec.Root != nil {
		path = c.spec.Root.Path
	}
	c.root, err = rootOf(c.State, path)
	return c, err
}

func hasBundle(s specs.State) error {
	if !filepath.IsAbs(s.Bundle) {
		return fmt.Errorf("container %s has no bundle", s.ID)
	}
	return nil
}

// rootOf returns the root file system that a bundle names by this path.
func rootOf(s specs.State, path string) (string, error) {
	switch {
	case path == "":
		return "", errors.New("the bundle names no root file system")
	case filepath.IsAbs(path):
		return path, nil
	}
	return filepath.Join(s.Bundle, path), nil
}

// readRoot returns the root file system of the container, without decoding the rest of
// the spec.
func readRoot(s specs.State) (root string, err error) {
	if err := hasBundle(s); err != nil {
		return "", err
	}
	b, err := bundle.Open(s.Bundle, "")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	path, err := b.RootPath()
	if err != nil {
		return "", err
	}
	return rootOf(s, path)
}

// readCreatingState reads the OCI state from r. It is an error unless the container has a process
// and has not started.
func readCreatingState(r io.Reader) (specs.State, error) {
	s, err := decodeState(r)
	switch {
	case err != nil:
		return s, err
	case s.Status != specs.StateCreating && s.Status != specs.StateCreated:
		return s, fmt.Errorf("container %s is %s: it is too late to inject devices", s.ID, s.Status)
	case s.Pid <= 0:
		return s, fmt.Errorf("container %s has no process yet", s.ID)
	}
	return s, nil
}

func readSpec(dir string) (spec *specs.Spec, err error) {
	b, err := bundle.Open(dir, "")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	if spec, err = b.RewrittenSpec(); err != nil || spec != nil {
		return spec, err
	}
	return b.Spec()
}

func decodeState(r io.Reader) (specs.State, error) {
	var s specs.State
	data, err := io.ReadAll(io.LimitReader(r, stateLimit+1))
	if err != nil {
		return s, fmt.Errorf("read container state: %w", err)
	}
	if len(data) > stateLimit {
		return s, fmt.Errorf("read container state: more than the limit of %d bytes", stateLimit)
	}
	if err := new(json.Codec).Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("read container state: %w", err)
	}
	if s.ID == "" {
		return s, errors.New("read container state: it has no id")
	}
	return s, nil
}

// sameBundle compares directories that may be removed by now, or written in different
// ways.
func sameBundle(a, b string) bool {
	if filepath.Clean(a) == filepath.Clean(b) {
		return true
	}
	fa, err := os.Stat(a)
	if err != nil {
		return false
	}
	fb, err := os.Stat(b)
	return err == nil && os.SameFile(fa, fb)
}
