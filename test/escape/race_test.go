package escape

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// races are attacks by whoever can write to the image while its container is made,
// another container of the same volume for one: at each place that an injector
// touches, what was there and a link to the host change places all the time. Looking
// before using the path again is no help.
func races() []attack {
	var all []attack
	for _, p := range places() {
		if p.file == "etc/new" {
			continue // nothing is there to be exchanged
		}
		all = append(all, race(p, "a path is used again after it was checked: CVE-2024-0133, CVE-2025-23267", func(s *scene) {
			s.twin(p.file)
			if filepath.Ext(p.name) == "" {
				s.must(os.MkdirAll(s.in(p.name), 0o755))
			} else if _, err := os.Lstat(s.in(p.name)); err != nil {
				s.write(s.in(p.name), "")
			}
		}))
	}
	const source = "a path of the image is mounted after it was checked: CVE-2024-0132, CVE-2025-23359"
	compat := func(s *scene) {
		s.library("usr/local/cuda/compat/libcuda.so.999.1", "libcuda.so.1")
		for _, name := range []string{
			"usr/local/nvidia/lib64/libcuda.so.1", "usr/local/berth/nvidia/lib64/libcuda.so.1", "usr/local/cuda/compat/libcuda.so.999.1", "etc/ld.so.cache",
		} {
			s.do("cat /" + name)
		}
	}
	return append(all,
		race(place{name: "usr/local/cuda/compat", file: ""}, source, compat),
		race(place{name: "usr/local/cuda/compat/libcuda.so.999.1", file: "secret"}, source, compat),
	)
}

func race(p place, class string, build func(s *scene)) attack {
	return attack{
		name: "race/" + p.name, class: class,
		not: map[string]string{"engine": "nobody else writes to the root that it makes of an image"},
		build: func(s *scene) {
			p.prepare(s)
			build(s)
			s.naively = []string{"--check", "--rounds", "50"}
			if p.mounted { // so that it isn't the runtime who loses the race
				s.naively = append(s.naively, "--only-prepare")
			}
			s.play = func() { s.compete(p) }
		},
		gained: won,
	}
}

// compete makes containers while the place changes, until something is gained, or
// for all the rounds.
func (s *scene) compete(p place) {
	s.t.Helper()
	s.ask()
	s.store()
	spec, err := os.ReadFile(filepath.Join(s.bundle, "config.json"))
	s.must(err)
	f, err := flip(s.in(p.name), filepath.Join(s.outside, p.file))
	s.must(err)
	defer func() { s.must(f.end()) }()
	starts, alone := max(1, *rounds/1000), *rounds
	if *everywhere {
		alone /= 4 // the four worlds share them
	}
	switch {
	case s.entryPoint == "naive":
		starts = 200
	case p.mounted || s.runtimeLoses():
		starts = 0
		s.prepared(alone)
	default:
		s.prepared(alone)
	}
	for range starts {
		if s.won != "" {
			return
		}
		s.write(filepath.Join(s.bundle, "config.json"), string(spec))
		s.once()
		if s.entryPoint == "naive" {
			s.won = changed(s) + told(s)
		} else {
			s.won = s.anything()
		}
	}
}

// runtimeLoses the race by itself, for any mount of anybody's: runc before 1.1.14
// makes mount points where a path leads after it was checked (CVE-2024-45310). The
// wrapper leaves mounting to it.
func (s *scene) runtimeLoses() bool {
	if s.entryPoint != "wrapper" || s.w.runtime != "runc" {
		return false
	}
	var major, minor, patch int
	said := s.w.Do(s.t, "runc", "--version")
	if _, err := fmt.Sscanf(said, "runc version %d.%d.%d", &major, &minor, &patch); err != nil {
		s.t.Fatalf("%q: %v", said, err)
	}
	old := major < 1 || major == 1 && (minor < 1 || minor == 1 && patch < 14)
	if old {
		note(tally.without, "race/*: no whole starts with wrapper and runc: runc before 1.1.14 loses the race itself (CVE-2024-45310)")
	}
	return old
}

// prepared has the code that prepares containers run by itself, for it is fast.
func (s *scene) prepared(rounds int) {
	s.t.Helper()
	self, err := os.Executable()
	s.must(err)
	cmd := s.w.Command(self, racerWord, s.entryPoint, s.config(), s.bundle, s.outside, s.secret, fmt.Sprint(rounds))
	if said := s.w.Run(s.t, cmd); said.Code != 0 {
		s.won = "while it was prepared: " + said.Err
	}
}

// flipper has a file of the image and a link change places until it is ended.
type flipper struct {
	path, link, target string
	stop               atomic.Bool
	done               sync.WaitGroup
	err                error
}

func flip(path, target string) (*flipper, error) {
	f := &flipper{path: path, link: path + ".other", target: target}
	if err := os.Symlink(target, f.link); err != nil {
		return nil, err
	}
	f.done.Go(func() {
		runtime.LockOSThread()
		for !f.stop.Load() && f.err == nil {
			f.err = f.exchange()
		}
	})
	return f, nil
}

// exchange swaps the two. Who writes files by renaming puts one in the place of
// the link: then there is a new one.
func (f *flipper) exchange() error {
	err := unix.Renameat2(unix.AT_FDCWD, f.path, unix.AT_FDCWD, f.link, unix.RENAME_EXCHANGE)
	for _, path := range []string{f.path, f.link} {
		var st unix.Stat_t
		if e := unix.Lstat(path, &st); e == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
			return ignoreMissing(err)
		}
	}
	if e := os.RemoveAll(f.link); e != nil {
		return e
	}
	return ignoreMissing(os.Symlink(f.target, f.link))
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrExist) {
		return nil
	}
	return err
}

// end leaves what was there in its place.
func (f *flipper) end() error {
	f.stop.Store(true)
	f.done.Wait()
	return f.err
}
