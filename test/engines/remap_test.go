package engines

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// Under dockerd's userns-remap, where root inside is no user of the host, a container has its GPU
// with everything that belongs to it, and the same device rules.
func TestRemappedUsers(t *testing.T) {
	skipUnlessWanted(t)
	for _, on := range []string{"forky/v1", "forky/v2", "bookworm/v1", "bookworm/v2"} {
		t.Run(on, func(t *testing.T) {
			suite, cgroup, _ := strings.Cut(on, "/")
			h := startFor(t, "-remap", suite, cgroup)
			p := place{h, docker(), "berth"}
			h.once("remapped docker", func() { remapped(t, h) })
			p.start(t, containerOptions{}).end() // engines make directories once
			before := p.footprint(t)
			for _, tt := range []struct {
				name    string
				options []string
				host    bool // it has the host's users after all
			}{
				{name: "root"},
				{name: "every capability", options: []string{"--cap-add", "ALL", "--security-opt", "seccomp=unconfined"}},
				{name: "the host's devices", options: []string{"--volume", "/dev:/dev"}},
				{name: "device rules", options: []string{"--device-cgroup-rule", "a *:* rwm"}},
				{name: "privileged", options: []string{"--privileged", "--userns", "host"}, host: true},
			} {
				t.Run(tt.name, func(t *testing.T) {
					without := p.start(t, containerOptions{options: tt.options})
					with := p.start(t, p.requestGPUs("1", containerOptions{options: tt.options}))
					if mapped := !strings.Contains(with.ask("cat /proc/self/uid_map")[0], "4294967295"); mapped == tt.host {
						t.Errorf("it has users of its own: %t", mapped)
					}
					if got := with.openedAccelerators(); len(got) != 1 {
						t.Errorf("with one GPU leased it opens %v", got)
					}
					if got := without.openedAccelerators(); len(got) != 0 {
						t.Errorf("without a lease it opens %v", got)
					}
					with.checkDriver()
					with.end()
					without.end()
				})
			}
			p.waitForLeases(t, before, 0)
		})
	}
}

// remapped starts dockerd with userns-remap, and gives it an image with a loader and its cache.
func remapped(t *testing.T, h *host) {
	t.Helper()
	h.users(t)
	containerd().prepare(t, h)
	h.lesser(t)
	server{h}.setRuntime(t, lesser)
	dockerd(t, h, "--userns-remap", "containers", "--add-runtime", "berth="+program("berth"))
	dir := filepath.Join(h.dir, "loader")
	rig.Must(t, os.CopyFS(dir, os.DirFS(image)))
	for _, file := range []string{"/lib64/ld-linux-x86-64.so.2", "/etc/ld.so.cache"} {
		data, err := os.ReadFile(file)
		rig.Must(t, err)
		rig.Must(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(file)), 0o755))
		rig.Must(t, os.WriteFile(filepath.Join(dir, file), data, 0o755))
	}
	h.do(t, "sh", "-c", `tar -C "$0" --owner 0 --group 0 -c . | docker import - test`, dir)
}

// checkDriver checks that the driver is there and the loader finds it, by a cache of the container's
// own: root inside may change it, as ldconfig does.
func (c *container) checkDriver() {
	c.t.Helper()
	if got := c.ask("open /usr/local/nvidia/lib64/libcuda.so.1")[0]; got != "ok EROFS EROFS" && got != "ok EACCES EACCES" {
		c.t.Errorf("libcuda.so.1: %s", got)
	}
	if cache := strings.Join(c.ask("cat /etc/ld.so.cache"), " "); !strings.Contains(cache, "/usr/local/nvidia/lib64/libcuda.so.1") {
		c.t.Error("the loader doesn't know libcuda.so.1")
	}
	image := strings.Fields(c.ask("tree /etc")[0])[2]
	for _, file := range []string{"/etc/ld.so.cache", "/etc/ld.so.conf.d/00-berth.conf"} {
		if got := c.ask("open " + file)[0]; got != "ok ok ok" {
			c.t.Errorf("%s: %s", file, got)
		}
		if got := strings.Fields(c.ask("tree " + file)[0]); len(got) < 3 || got[2] != image {
			c.t.Errorf("%s is owned by %v, and not by %s", file, got, image)
		}
	}
}
