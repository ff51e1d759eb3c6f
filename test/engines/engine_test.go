package engines

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/berth-gpu/berth/test/rack"
	"github.com/berth-gpu/berth/test/rig"
)

// engine describes how containers are started with an engine.
type engine struct {
	name string
	// prepare starts the engine, and gives it the image.
	prepare func(*testing.T, *host)
	// words returns the arguments that run a container in the foreground, with its standard input,
	// the host's /dev at /nodes, and removed at its end.
	words func(*testing.T, *host, containerOptions) []string
	// refused is the engine's exit code when a container can't be created.
	refused int
}

// containerOptions describes a container to start.
type containerOptions struct {
	id         string
	runtime    string // "runc", "crun" or "berth"
	devices    []string
	annotation string   // "berth.gpus=2"
	global     []string // arguments of podman before its verb
	options    []string // further arguments of the engine
}

// program is the path of a runtime.
func program(runtime string) string {
	if runtime == "berth" {
		return shared.Runtime
	}
	return "/usr/bin/" + runtime
}

func docker() engine {
	return engine{name: "docker", refused: 125, prepare: func(t *testing.T, h *host) {
		containerd().prepare(t, h) // as on a server, where they share it
		h.lesser(t)
		dockerd(t, h, "--add-runtime", "crun="+program("crun"), "--add-runtime", "berth="+program("berth"), "--add-runtime", "lesser="+lesser)
	}, words: func(_ *testing.T, _ *host, w containerOptions) []string {
		words := []string{"docker", "run", "--rm", "--interactive", "--network", "none", "--name", w.id, "--runtime", w.runtime, "--volume", "/dev:/nodes"}
		return append(w.add(words), "test", "/probe")
	}}
}

func podman() engine {
	return engine{name: "podman", refused: 126, prepare: func(t *testing.T, h *host) {
		h.do(t, "sh", "-c", `tar -C "$0" -cf /tmp/image.tar . && podman import /tmp/image.tar localhost/test`, image)
	}, words: func(_ *testing.T, h *host, w containerOptions) []string {
		if w.annotation != "" && h.suite == "bookworm" {
			w.annotation = strconv.Quote(w.annotation) // podman 4 splits values at commas
		}
		words := append(rack.Podman("--runtime", program(w.runtime)), w.global...)
		words = append(words, "run", "--rm", "--interactive", "--network", "none", "--name", w.id)
		words = append(words, rack.PodmanLimits("--volume", "/dev:/nodes:dev")...)
		return append(w.add(words), "localhost/test", "/probe")
	}}
}

func containerd() engine {
	return engine{name: "containerd", refused: 1, prepare: func(t *testing.T, h *host) {
		h.once("containerd is up", func() {
			h.daemon(t, "containerd")
			h.until(t, "ctr", "version")
		})
	}, words: func(t *testing.T, h *host, w containerOptions) []string {
		root := filepath.Join(h.dir, w.id)
		rig.Must(t, os.CopyFS(root, os.DirFS(image)))
		t.Cleanup(func() { rig.Must(t, os.RemoveAll(root)) })
		words := []string{"ctr", "run", "--rm", "--cpu-shares", "0", "--runc-binary", program(w.runtime), "--mount", "type=bind,src=/dev,dst=/nodes,options=rbind:rw"}
		return append(w.add(words), "--rootfs", root, w.id, "/probe")
	}}
}

// add appends the options that are the same in all engines.
func (w containerOptions) add(words []string) []string {
	for _, d := range w.devices {
		words = append(words, "--device", d)
	}
	if w.annotation != "" {
		words = append(words, "--annotation", w.annotation)
	}
	return append(words, w.options...)
}

// place is a host with an engine that calls a runtime.
type place struct {
	*host
	engine
	runtime string
}

// eachEngine runs a test with each engine that supports CDI and each runtime, one after another,
// because they share the host's GPUs.
func eachEngine(t *testing.T, runtimes []string, f func(*testing.T, place)) {
	eachOf(t, map[string][]engine{"forky": {docker(), podman(), containerd()}, "bookworm": {podman()}}, runtimes, f)
}

// eachOf is everywhere with some engines of the suites.
func eachOf(t *testing.T, engines map[string][]engine, runtimes []string, f func(*testing.T, place)) {
	skipUnlessWanted(t)
	for _, suite := range []string{"forky", "bookworm"} {
		for _, cgroup := range []string{"v1", "v2"} {
			for _, e := range engines[suite] {
				for _, runtime := range runtimes {
					t.Run(strings.Join([]string{suite, cgroup, e.name, runtime}, "/"), func(t *testing.T) {
						p := place{start(t, suite, cgroup), e, runtime}
						p.once(e.name, func() { e.prepare(t, p.host) })
						f(t, p)
					})
				}
			}
		}
	}
}

// container is a container that runs the probe.
type container struct {
	t        *testing.T
	p        place
	cmd      *exec.Cmd
	commands io.WriteCloser
	answers  *bufio.Scanner
	errors   *os.File
	ended    bool
}

var counter atomic.Int32

func newID() string { return fmt.Sprintf("berth-%d-%d", os.Getpid(), counter.Add(1)) }

// start makes the engine run a container, which has to succeed.
func (p place) start(t *testing.T, w containerOptions) *container {
	t.Helper()
	w.id, w.runtime = newID(), p.runtime
	c := &container{t: t, p: p, cmd: p.command(p.words(t, p.host, w)...), errors: file(t)}
	c.cmd.Stderr = c.errors
	var err error
	c.commands, err = c.cmd.StdinPipe()
	rig.Must(t, err)
	out, err := c.cmd.StdoutPipe()
	rig.Must(t, err)
	c.answers = bufio.NewScanner(out)
	rig.Must(t, c.cmd.Start())
	t.Cleanup(c.end)
	c.ask("open /") // it runs
	return c
}

// ask sends the probe a command and returns the lines of its answer.
func (c *container) ask(command string) (lines []string) {
	c.t.Helper()
	_, err := io.WriteString(c.commands, command+"\n")
	rig.Must(c.t, err)
	for c.answers.Scan() {
		if c.answers.Text() == "." {
			return lines
		}
		lines = append(lines, c.answers.Text())
	}
	c.end()
	c.t.FailNow()
	return nil
}

// opens returns the host's GPUs that the container can open by the host's nodes; the others have to
// be closed by device rules. Its own /dev has to have exactly the same ones.
func (c *container) opens() (gpus []string) {
	c.t.Helper()
	const rules, allowed, absent = "EPERM EPERM EPERM", "ENXIO ENXIO ENXIO", "ENOENT ENOENT ENOENT"
	for i := range 8 {
		name := fmt.Sprintf("nvidia%d", i)
		own, host := strings.Join(c.ask("open /dev/"+name), ""), strings.Join(c.ask("open /nodes/"+name), "")
		switch {
		case own == allowed && host == allowed:
			gpus = append(gpus, name)
		case own != absent || host != rules:
			c.t.Errorf("/dev/%s: %s; by the host's node: %s", name, own, host)
		}
	}
	return gpus
}

// end ends the probe, and waits for the engine's command.
func (c *container) end() {
	if c.ended {
		return
	}
	c.ended = true
	_ = c.commands.Close() // it may have ended already
	for c.answers.Scan() {
	}
	if err := c.cmd.Wait(); err != nil {
		c.t.Errorf("%v: %v: %s", c.cmd.Args, err, content(c.t, c.errors))
	}
}

// wantRefused makes the engine run a container, which must fail, and returns the output.
func (p place) wantRefused(t *testing.T, w containerOptions) string {
	t.Helper()
	w.id, w.runtime = newID(), p.runtime
	got := p.run(t, p.words(t, p.host, w)...)
	if got.code != p.refused {
		t.Errorf("%v: exit code %d: %s%s", w.devices, got.code, got.out, got.err)
	}
	return got.out + got.err
}
