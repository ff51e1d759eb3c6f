package engines

import (
	"slices"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rack"
)

// dockerHost is a host with a Docker of its own.
type dockerHost struct {
	server
	runtime string
	// flags of dockerd.
	flags []string
	// request is the way in which its containers request GPUs.
	request func(gpus string) []string
}

// start runs dockerd, with flags that change from test to test.
func (d *dockerHost) up(t *testing.T, flags ...string) {
	t.Helper()
	d.flags = flags
	words := rack.Dockerd("--add-runtime", "crun="+program("crun"), "--add-runtime", "berth="+program("berth"))
	d.startDaemon(t, append(words, flags...)...)
	d.until(t, "docker", "info")
}

// down kills dockerd.
func (d *dockerHost) down(t *testing.T) {
	t.Helper()
	d.killDaemon(t, "dockerd")
}

// words returns the arguments of docker run and docker create up to the image.
func (d *dockerHost) words(verb, name, gpus string, more ...string) []string {
	words := append([]string{"docker"}, strings.Fields(verb)...)
	words = append(words, "--network", "none", "--runtime", d.runtime, "--volume", "/dev:/nodes", "--name", name)
	if gpus != "" {
		words = append(words, d.request(gpus)...)
	}
	return append(append(words, more...), "test", "/wait")
}

// startContainer runs a container in the background and returns its id.
func (d *dockerHost) startContainer(t *testing.T, gpus string, more ...string) string {
	t.Helper()
	return strings.TrimSpace(d.do(t, d.words("run --detach", newID(), gpus, more...)...))
}

// checkLease checks that a container opens exactly the devices of its lease, and returns them.
func (d *dockerHost) checkLease(t *testing.T, id string) []string {
	t.Helper()
	own, all := d.runProbe(t, "docker", "exec", id)
	held := d.heldGPUs(t)[id]
	if !slices.Equal(own, held) || !slices.Equal(all, held) {
		t.Errorf("container %s has %v in /dev and opens %v, its lease has %v", id, own, all, held)
	}
	return held
}

func (d *dockerHost) docker(t *testing.T, words ...string) {
	t.Helper()
	d.do(t, append([]string{"docker"}, words...)...)
}

func (d *dockerHost) inspect(t *testing.T, id, field string) string {
	t.Helper()
	return strings.TrimSpace(d.do(t, "docker", "inspect", "--format", "{{."+field+"}}", id))
}

// killInit kills the first process of a container, as when it crashes.
func (d *dockerHost) killInit(t *testing.T, id string) {
	t.Helper()
	d.kill(t, d.inspect(t, id, "State.Pid"))
}

// waitForState waits until a container has this state.
func (d *dockerHost) waitForState(t *testing.T, id, field, want string) {
	t.Helper()
	eventually(t, func() string {
		if got := d.inspect(t, id, field); got != want {
			return "container " + id + " has " + field + " " + got + " and not " + want
		}
		return ""
	})
}

// A lease has the lifetime of its container, whatever Docker does with it: there is one while the
// container runs, with the devices that the container can open, and none otherwise.
func TestDockerLife(t *testing.T) {
	skipUnlessWanted(t)
	t.Parallel()
	annotation := func(gpus string) []string { return []string{"--annotation", "berth.gpus=" + gpus} }
	device := func(gpus string) []string { return []string{"--device", "berth/gpus=" + gpus} }
	for _, tt := range []struct {
		cgroup, runtime string
		request         func(string) []string
		only            []string
		real            string // runtime that berth becomes
	}{
		{"v2", "berth", annotation, nil, "runc"},
		{"v2", "runc", device, nil, "runc"},
		{"v1", "berth", device, []string{
			"exec", "stop and start", "pause", "update", "dies and is restarted", "daemon killed", "a full host", "shim killed", "a full /run", "docker compose killed",
			"dockerd, containerd and all shims killed", "live-restore: dockerd, containerd and one shim killed",
		}, "crun"},
	} {
		t.Run(tt.cgroup+"/"+tt.runtime, func(t *testing.T) {
			t.Parallel() // on a host of its own
			d := &dockerHost{server: server{startFor(t, "-docker-"+tt.runtime, "forky", tt.cgroup)}, runtime: tt.runtime, request: tt.request}
			d.once("docker", func() { d.install(t) })
			d.setRuntime(t, tt.real)
			// Engines and berth alloc make some directories at the first use.
			d.docker(t, "run", "--rm", "--network", "none", "--runtime", d.runtime, "test", "/probe")
			d.takeGPUs(t, 1)()
			before := d.footprint(t)
			for _, c := range slices.Concat(dockerLives, dockerFaults) {
				if tt.only != nil && !slices.Contains(tt.only, c.name) {
					continue
				}
				t.Run(c.name, func(t *testing.T) {
					defer func() {
						d.removeAll(t)
						if d.runtime != "berth" {
							d.takeGPUs(t, 1)() // without the wrapper, the next acquire removes the leases of ended containers
						}
						d.waitUntilFree(t, before)
					}()
					c.run(t, d)
				})
			}
		})
	}
}

// removeAll removes all containers.
func (d *dockerHost) removeAll(t *testing.T) {
	t.Helper()
	if all := strings.Fields(d.do(t, "docker", "ps", "--all", "--quiet")); len(all) > 0 {
		d.docker(t, append([]string{"rm", "--force"}, all...)...)
	}
}

// install starts the engines of a host, and gives Docker the image.
func (d *dockerHost) install(t *testing.T) {
	t.Helper()
	d.startDaemon(t, "containerd")
	d.until(t, "ctr", "version")
	d.up(t)
	d.do(t, "sh", "-c", `tar -C "$0" -c . | docker import - test`, image)
}

// checkBusy checks that Docker says in one line that too few GPUs are free.
func (d *dockerHost) checkBusy(t *testing.T, words []string, reason string) {
	t.Helper()
	got := d.run(t, words...)
	lines := slices.DeleteFunc(strings.Split(got.out+got.err, "\n"), func(l string) bool { return !strings.Contains(l, reason) })
	if got.code == 0 || len(lines) != 1 {
		t.Errorf("%v: exit code %d: %s%s", words, got.code, got.out, got.err)
	}
	if words[1] != "start" {
		d.docker(t, "rm", "--force", words[slices.Index(words, "--name")+1])
	}
}
