package engines

import (
	"slices"
	"strings"
	"testing"
)

// However often a container states its request, it has one lease: by berth's device, the
// annotation, and with podman the packaged hooks.
func TestOneLease(t *testing.T) {
	eachEngine(t, []string{"runc", "berth"}, func(t *testing.T, p place) {
		w := containerOptions{devices: []string{"berth/gpus=2"}, annotation: "berth.gpus=2"}
		if p.name == "podman" {
			w.global = []string{"--hooks-dir", packagedHooks(t, p.host)}
		}
		c := p.start(t, w)
		if got := c.opens(); len(got) != 2 {
			t.Errorf("it opens %v", got)
		}
		if leases := p.live(t); len(leases) != 1 || len(leases[0].Devices) != 2 {
			t.Errorf("leases: %+v", leases)
		}
		c.end()
		p.waitForLeases(t, nil, 0)

		w.annotation = "berth.gpus=3"
		p.wantRefused(t, w)
		p.waitForLeases(t, nil, 0)
	})
}

// vendor is the CDI spec of another vendor, which policy allows.
const vendor = `{"cdiVersion": "0.5.0", "kind": "vendor.example/nic", "devices": [{"name": "port0", "containerEdits": {
	"env": ["PORT=0"],
	"deviceNodes": [{"path": "/dev/port0", "hostPath": "/dev/gdrdrv"}],
	"mounts": [{"hostPath": "/etc/hostname", "containerPath": "/port", "options": ["ro", "bind"]}]
}}]}`

// Another vendor's device is leased with the GPUs, comes with everything in its spec, and can't be
// leased twice.
func TestVendor(t *testing.T) {
	eachEngine(t, []string{"berth"}, func(t *testing.T, p place) {
		const both = "berth.gpus=1,vendor.example/nic=port0"
		c := p.start(t, containerOptions{annotation: both})
		if got := c.opens(); len(got) != 1 {
			t.Errorf("it opens %v", got)
		}
		if got := c.ask("open /dev/port0"); got[0] != "ENXIO ENXIO ENXIO" {
			t.Errorf("/dev/port0: %s", got)
		}
		if got := c.ask("open /port"); got[0] != "ok EROFS EROFS" {
			t.Errorf("the mount: %s", got)
		}
		if environment := c.ask("cat /proc/self/environ"); !slices.Contains(environment, "PORT=0") {
			t.Errorf("the environment: %s", environment)
		}
		if text := p.wantRefused(t, containerOptions{annotation: both}); !strings.Contains(text, "vendor.example/nic=port0") {
			t.Errorf("the second is told %s", text)
		}
		c.end()
		p.waitForLeases(t, nil, 0)
	})
}
