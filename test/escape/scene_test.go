package escape

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/test/rig"
)

// scene is one attempt: an image, an engine's spec for it, and the endangered files of the host.
type scene struct {
	t          *testing.T
	w          *world
	entryPoint string // naive, wrapper, hook, or plain for no injector
	id         string

	bundle, root string
	spec         *specs.Spec
	request      string // the request of the engine's user, "" for none
	policy       string // lines of the admin's configuration

	outside string // a directory of the host
	before  []string
	mark    string // the file that code of the image would make
	secret  string // the content of the host's files

	commands []string        // commands for the program inside
	foreign  map[string]bool // those commands that open foreign devices
	between  func()          // called for the container before it starts
	flipped  *place          // the place that is exchanged while berth starts the image with Apptainer's words

	usualRoot  bool   // the runtime's own state directory, where berth finds running containers
	lastVictim string // the id of the last container that holds devices

	play func() // makes the attempt, if not nil
	won  string // the gain of a race
	// naively are further arguments of the naive injector; hangs is set if it is expected never to
	// end.
	naively []string
	hangs   bool

	said    rig.Said
	memory  int64 // KiB
	answers map[string]string
}

var counter atomic.Int32

func newScene(t *testing.T, w *world, entryPoint string) *scene {
	t.Helper()
	n := counter.Add(1)
	dir := w.dir(t)
	s := &scene{
		t: t, w: w, entryPoint: entryPoint, id: fmt.Sprintf("escape-%d-%d", os.Getpid(), n), request: "device=0",
		bundle: filepath.Join(dir, "bundle"), outside: filepath.Join(dir, "outside"), mark: filepath.Join(dir, "mark"),
		secret: fmt.Sprintf("the host's secret %d", n), foreign: map[string]bool{}, answers: map[string]string{},
	}
	s.root = filepath.Join(s.bundle, "rootfs")
	s.host()
	s.image()
	s.spec = s.engine()
	s.play = func() {
		s.putRequest()
		s.store()
		s.runOnce()
	}
	for path, d := range w.devices {
		if !d.own {
			s.addOpenAttempts(path, d)
		}
	}
	return s
}

// host makes the endangered files.
func (s *scene) host() {
	for _, name := range []string{"etc/ld.so.cache", "etc/ld.so.conf", "etc/ld.so.conf.d/theirs.conf", "etc/keep", "libcuda.so.999.1", "secret"} {
		s.write(filepath.Join(s.outside, name), s.secret+"\n")
	}
	s.before = list(s.t, s.outside)
}

// image makes a root file system with glibc's loader, so that there is a cache to
// write, and with nodes of all accelerators, as a hostile image brings them along.
func (s *scene) image() {
	for _, dir := range []string{"proc", "sys", "dev", "tmp", "run", "nodes", "cgroup", "bin", "sbin", "lib64", "usr/bin", "usr/local", "etc/ld.so.conf.d"} {
		s.runCommand(os.MkdirAll(s.in(dir), 0o755))
	}
	for _, file := range []string{"/lib64/ld-linux-x86-64.so.2", "/etc/ld.so.cache"} {
		data, err := os.ReadFile(file)
		s.runCommand(err)
		s.runCommand(os.WriteFile(s.in(file), data, 0o755))
	}
	s.runCommand(os.Link(shared.probe, s.in("probe")))
	for _, d := range s.w.devices {
		s.node(s.in(d.image()), d)
	}
}

func (s *scene) node(path string, d device) {
	s.runCommand(unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(d.major, d.minor))))
	s.runCommand(unix.Chmod(path, 0o666))
}

// engine returns the spec that an engine writes for a container with its default settings.
func (s *scene) engine() *specs.Spec {
	capabilities := []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_MKNOD", "CAP_SETUID"}
	return &specs.Spec{
		Version: "1.0.2",
		Root:    &specs.Root{Path: s.root},
		Process: &specs.Process{
			Cwd: "/", Args: []string{"/probe"}, Env: []string{"PATH=/usr/bin:/bin"},
			Capabilities: &specs.LinuxCapabilities{Bounding: capabilities, Permitted: capabilities, Effective: capabilities},
		},
		Annotations: map[string]string{},
		Hooks:       &specs.Hooks{},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755"}},
		},
		Linux: &specs.Linux{
			CgroupsPath: "/" + s.id,
			Namespaces:  []specs.LinuxNamespace{{Type: "pid"}, {Type: "mount"}, {Type: "network"}, {Type: "cgroup"}},
			Resources:   &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}},
		},
	}
}

// Functions for the builds of attacks.

// in returns the path on the host of a path of the image.
func (s *scene) in(name string) string { return filepath.Join(s.root, name) }

func (s *scene) runCommand(err error) { s.t.Helper(); rig.Must(s.t, err) }

// write makes a file and the directories to it.
func (s *scene) write(path, content string) {
	s.t.Helper()
	s.runCommand(os.MkdirAll(filepath.Dir(path), 0o755))
	s.runCommand(os.WriteFile(path, []byte(content), 0o644))
}

// clear removes the image's file of this name, and makes the directories above it.
func (s *scene) clear(name string) {
	s.t.Helper()
	s.runCommand(os.RemoveAll(s.in(name)))
	s.runCommand(os.MkdirAll(filepath.Dir(s.in(name)), 0o755))
}

// link puts a symbolic link into the image.
func (s *scene) link(name, target string) {
	s.t.Helper()
	s.clear(name)
	s.runCommand(os.Symlink(target, s.in(name)))
}

// env adds a variable to the image's environment.
func (s *scene) env(vars ...string) { s.spec.Process.Env = append(s.spec.Process.Env, vars...) }

// addMarkedLibrary puts a library into the image that leaves a mark when it is loaded.
func (s *scene) addMarkedLibrary(name string) {
	s.t.Helper()
	data, err := os.ReadFile(shared.evil)
	s.runCommand(err)
	start := bytes.Index(data, []byte("@MARK@"))
	end := start + bytes.IndexByte(data[start:], 0)
	if start < 0 || len(s.mark) > end-start {
		s.t.Fatal("the library has no room for the path of the mark")
	}
	copy(data[start:end], append([]byte(s.mark), make([]byte, end-start-len(s.mark))...))
	s.clear(name)
	s.runCommand(os.WriteFile(s.in(name), data, 0o755))
}

// addMarkedProgram puts a program into the image that leaves a mark when it is run.
func (s *scene) addMarkedProgram(name string) {
	s.t.Helper()
	s.clear(name)
	s.runCommand(os.WriteFile(s.in(name), []byte("#!/bin/sh\n: >"+s.mark+"\n"), 0o755))
}

// addOpenAttempts makes the program inside open the host's node and the image's.
func (s *scene) addOpenAttempts(path string, d device) {
	for _, command := range []string{"open " + path, "open " + d.image()} {
		s.addCommand(command)
		s.foreign[command] = true
	}
}

func (s *scene) addCommand(commands ...string) { s.commands = append(s.commands, commands...) }

// setCommands replaces the program's commands by these.
func (s *scene) setCommands(commands ...string) { s.commands = commands }

// String describes an attempt that had an unexpected result.
func (s *scene) String() string {
	text := fmt.Sprintf("exit code %d, %d KiB, %s", s.said.Code, s.memory, s.said.Err)
	for _, command := range slices.Sorted(maps.Keys(s.answers)) {
		if !s.foreign[command] {
			text += fmt.Sprintf("\n\t%s: %.300s", command, s.answers[command])
		}
	}
	return text
}

// list describes everything below a directory: names, modes, times, numbers and contents.
func list(t testing.TB, dir string) (all []string) {
	t.Helper()
	rig.Must(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		text := fmt.Sprint(strings.TrimPrefix(path, dir), " ", st.Mode, " ", st.Rdev, " ", st.Mtim.Nano())
		if st.Mode&unix.S_IFMT == unix.S_IFREG {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text += fmt.Sprintf(" %.60q", data)
		}
		all = append(all, text)
		return nil
	}))
	return all
}

// diff returns the first line that only one side has.
func diff(before, after []string) string {
	for _, line := range after {
		if !slices.Contains(before, line) {
			return line
		}
	}
	for _, line := range before {
		if !slices.Contains(after, line) {
			return line + " is gone"
		}
	}
	return ""
}
