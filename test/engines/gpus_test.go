package engines

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/test/rack"
	"github.com/berth-gpu/berth/test/rig"
)

// standIn is a directory, first on dockerd's PATH, with berth's hook under the name that Docker
// looks for: without such a program Docker refuses --gpus.
const standIn = "/var/lib/berth/engines/docker"

// dockerd starts dockerd with the configuration of berth setup, and with more flags.
func dockerd(t *testing.T, h *host, more ...string) {
	t.Helper()
	h.do(t, "sh", "-c", `mkdir -p "$1" && ln -sf "$0" "$1/nvidia-container-runtime-hook"`, filepath.Join(shared.Dir, "berth-hook"), standIn)
	startDockerd(t, h, standIn+":"+usualPath, more...)
}

const usualPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// startDockerd starts dockerd with a PATH, and gives it the images.
func startDockerd(t *testing.T, h *host, path string, more ...string) {
	t.Helper()
	h.daemon(t, append([]string{"env", "PATH=" + path}, rack.Dockerd(more...)...)...)
	h.until(t, "docker", "info")
	h.do(t, "sh", "-c", `tar -C "$0" -c . | docker import - test
		tar -C "$0" -c . | docker import --change 'ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=all' - cuda`, image)
}

// dockerRun is a Docker with its users' arguments.
func dockerRun(words ...string) engine {
	return engine{name: "docker", refused: 125, words: func(_ *testing.T, _ *host, w containerOptions) []string {
		run := []string{"docker", "run", "--rm", "--interactive", "--network", "none", "--name", w.id, "--volume", "/dev:/nodes"}
		if w.runtime != "" {
			run = append(run, "--runtime", w.runtime)
		}
		return append(append(run, words...), "/probe")
	}}
}

// uuids returns the UUIDs of the host's GPUs by index.
func (h *host) uuids(t *testing.T) (all []string) {
	t.Helper()
	var node struct{ Devices []struct{ UUID string } }
	rig.Must(t, json.Unmarshal([]byte(h.do(t, shared.Berth, "gpus", "--json")), &node))
	for _, d := range node.Devices {
		all = append(all, d.UUID)
	}
	return all
}

// The devices of docker run --gpus while GPU 0 is leased: free GPUs for a count, the named devices
// for names, and none for the environment of an image.
func TestGPUsFlag(t *testing.T) {
	skipUnlessWanted(t)
	for _, suite := range []string{"forky", "bookworm"} {
		for _, cgroup := range []string{"v2", "v1"} {
			t.Run(suite+"/"+cgroup, func(t *testing.T) {
				h := start(t, suite, cgroup)
				h.once("docker", func() { docker().prepare(t, h) })
				ids := h.uuids(t)
				holder := place{h, dockerRun("--gpus", "device="+ids[0], "test"), "berth"}.start(t, containerOptions{})
				if diff := cmp.Diff([]string{"nvidia0"}, holder.opens()); diff != "" {
					t.Fatalf("the holder's (-want +got):\n%s", diff)
				}
				for _, tt := range flagCases(ids) {
					if tt.since28 && suite == "bookworm" {
						continue
					}
					t.Run(strings.Join(tt.words, " "), func(t *testing.T) { tt.check(t, h, "berth") })
				}
				holder.end()
				h.waitUntilReleased(t)
				t.Run("all, when all are free", func(t *testing.T) {
					flagCase{words: []string{"--gpus", "all", "test"}, count: 8}.check(t, h, "berth")
				})
				t.Run("another runtime", func(t *testing.T) { failsClosed(t, h) })
			})
		}
	}
}

// flagCase is one form of the request.
type flagCase struct {
	words []string
	// since28 marks cases that Docker 20.10 doesn't support: CDI, annotations, and --privileged
	// where root lacks a capability.
	since28 bool
	count   int
	gpus    []string // unless nil, exactly these devices
	says    string   // of an error
}

func flagCases(ids []string) []flagCase {
	return []flagCase{
		{words: []string{"--gpus", "2", "test"}, count: 2},
		{words: []string{"--gpus", "all", "test"}, says: "request all: 8 asked, 7 of 8 free"},
		{words: []string{"--gpus", "8", "test"}, says: "request 8: 8 asked, 7 of 8 free"},
		{words: []string{"--gpus", "9", "test"}, says: "node has 8 GPUs, 9 asked"},
		{words: []string{"--gpus", "0", "test"}},
		{words: []string{"--gpus", `"device=` + ids[5] + `"`, "test"}, gpus: []string{"nvidia5"}},
		{words: []string{"--gpus", `"device=1"`, "test"}, gpus: []string{"nvidia1"}},
		{words: []string{"--gpus", `"device=2,4"`, "test"}, gpus: []string{"nvidia2", "nvidia4"}},
		{words: []string{"--gpus", `"device=0,2"`, "test"}, says: "request device=0,2: "},
		{words: []string{"--gpus", `"device=` + ids[0] + `"`, "test"}, says: "1 asked, 0 of 1 free"},
		{words: []string{"--gpus", `"device=0,1"`, "test"}, count: 2},
		{words: []string{"--gpus", `"capabilities=compute,utility",count=1`, "test"}, count: 1},
		{words: []string{"--gpus", `"device=h100:2"`, "test"}, count: 2},
		{words: []string{"--gpus", `"device=zx81"`, "test"}, says: "node has no zx81"},
		{words: []string{"--gpus", `"device=;"`, "test"}, says: "--gpus: request"},
		{words: []string{"--gpus", "1", "--env", "NVIDIA_VISIBLE_DEVICES=all", "cuda"}, count: 1},
		{words: []string{"--gpus", "1", "--env", "NVIDIA_VISIBLE_DEVICES=0,1,2", "cuda"}, count: 1},
		{words: []string{"--gpus", "0", "--env", "NVIDIA_VISIBLE_DEVICES=all", "cuda"}},
		{words: []string{"--gpus", "0", "cuda"}},
		{words: []string{"--gpus", "1", "--env", "NVIDIA_VISIBLE_DEVICES=all", "test"}, count: 1},
		{words: []string{"--gpus", "2", "--volume", "/etc/hostname:/run/.containerenv", "test"}, count: 2}, // as podman's have
		{words: []string{"--gpus", "2", "--annotation", "io.podman.annotations.init=TRUE", "test"}, since28: true, count: 2},
		{words: []string{"--gpus", "2", "--annotation", "io.kubernetes.cri.container-type=container", "test"}, since28: true, count: 2},
		{words: []string{"--env", "NVIDIA_VISIBLE_DEVICES=all", "test"}},
		{words: []string{"--privileged", "test"}, since28: true},
		{words: []string{"cuda"}},
		{words: []string{"--device", "berth/gpus=2", "cuda"}, since28: true, count: 2},
		{words: []string{"--device", "berth/gpus=h100:2", "test"}, since28: true, count: 2},
		{words: []string{"--device", "berth/gpus=gpu3", "test"}, since28: true, gpus: []string{"nvidia3"}},
		{words: []string{"--device", "nvidia.com/gpu=3", "test"}, since28: true, gpus: []string{"nvidia3"}},
		{words: []string{"--annotation", "berth.gpus=h100:2", "cuda"}, since28: true, count: 2},
		{words: []string{"--gpus", "2", "--device", "berth/gpus=2", "test"}, since28: true, count: 2},
		{words: []string{"--gpus", "2", "--annotation", "berth.gpus=3", "test"}, since28: true, says: "contradicting requests"},
	}
}

// check runs a container with this request, by a runtime or the default one.
func (c flagCase) check(t *testing.T, h *host, runtime string) {
	t.Helper()
	p := place{h, dockerRun(c.words...), runtime}
	before := len(h.live(t))
	if c.says != "" {
		p.checkReason(t, p.wantRefused(t, containerOptions{}), c.says)
		if got := len(h.live(t)); got != before {
			t.Errorf("%d leases, and not %d", got, before)
		}
		return
	}
	probe := p.start(t, containerOptions{})
	got := probe.opens()
	want := max(c.count, len(c.gpus))
	if len(got) != want || c.gpus != nil && !slices.Equal(got, c.gpus) {
		t.Errorf("it opens %v, want %d: %v", got, want, c.gpus)
	}
	if want > 0 {
		probe.checkDriverFiles()
		probe.checkVoid()
	}
	probe.end()
	p.waitForLeases(t, nil, before)
}

// checkVoid checks that NVIDIA's tools see no devices in the environment.
func (c *container) checkVoid() {
	c.t.Helper()
	var said []string
	for _, v := range c.ask("cat /proc/self/environ") {
		if strings.HasPrefix(v, "NVIDIA_VISIBLE_DEVICES=") {
			said = append(said, v)
		}
	}
	if !slices.Equal(said, []string{"NVIDIA_VISIBLE_DEVICES=void"}) {
		c.t.Errorf("the environment has %q", said)
	}
}

// waitUntilReleased waits until there is no lease.
func (h *host) waitUntilReleased(t *testing.T) {
	t.Helper()
	eventually(t, func() string {
		if live := h.live(t); len(live) > 0 {
			return fmt.Sprintf("held: %+v", live)
		}
		return ""
	})
}

// A container with --gpus under another runtime than berth's isn't started, and the error says why.
func failsClosed(t *testing.T, h *host) {
	t.Helper()
	p := place{h, dockerRun("--gpus", "1", "test"), "runc"}
	p.checkReason(t, p.wantRefused(t, containerOptions{}), "--gpus was asked for, and the container's runtime isn't berth: add --runtime berth, "+
		"or make it the default runtime (berth setup docker --default)")
	h.waitUntilReleased(t)
}

// guide returns the page about Docker.
func guide(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/docker.md")
	rig.Must(t, err)
	return string(text)
}

// The guide's commands are those that these tests run.
func TestGuide(t *testing.T) {
	_, table, ok := strings.Cut(guide(t), "| `docker run …` |")
	table, _, _ = strings.Cut(table, "\n\n")
	typed := map[string]flagCase{"--gpus 1 --runtime runc": {}}
	for _, c := range flagCases([]string{"GPU-0", "", "", "", "", "GPU-…"}) {
		words := slices.Clone(c.words[:len(c.words)-1])
		for i, w := range words {
			if strings.Contains(w, `"`) {
				words[i] = "'" + w + "'"
			}
		}
		typed[strings.Join(words, " ")] = c
	}
	flags := regexp.MustCompile("`(--[^`]+)`")
	count := 0
	for row := range strings.Lines(table) {
		first, _, _ := strings.Cut(strings.TrimPrefix(row, "|"), " |")
		for _, m := range flags.FindAllStringSubmatch(first, -1) {
			count++
			c, ok := typed[m[1]]
			if !ok {
				t.Errorf("no test types %s", m[1])
			}
			if c.since28 != strings.Contains(first, "¹") {
				t.Errorf("%s: the guide isn't right about Docker 20.10", m[1])
			}
		}
	}
	if !ok || count < 15 {
		t.Errorf("the table has %d habits", count)
	}
}
