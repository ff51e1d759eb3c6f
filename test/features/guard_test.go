package features

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/test/rig"
)

// privileged returns the spec's changes by --privileged: all rules, all nodes, and the capability
// that can lift rules.
func (d entryPoint) privileged(t *testing.T) func(*specs.Spec) {
	return func(s *specs.Spec) {
		s.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
		d.nodes(t, s, "")
		for _, set := range []*[]string{&s.Process.Capabilities.Bounding, &s.Process.Capabilities.Permitted, &s.Process.Capabilities.Effective} {
			*set = append(*set, "CAP_SYS_ADMIN")
		}
	}
}

// device returns the spec's changes by --device, for all nodes with a prefix.
func (d entryPoint) device(t *testing.T, prefix string) func(*specs.Spec) {
	return func(s *specs.Spec) { d.nodes(t, s, prefix) }
}

func (d entryPoint) nodes(t *testing.T, s *specs.Spec, prefix string) {
	mode := os.FileMode(0o666)
	for _, dev := range d.accelerators(t) {
		if !strings.HasPrefix(dev.path, prefix) {
			continue
		}
		major, minor := int64(dev.major), int64(dev.minor)
		s.Linux.Devices = append(s.Linux.Devices, specs.LinuxDevice{Path: dev.path, Type: "c", Major: major, Minor: minor, FileMode: &mode})
		s.Linux.Resources.Devices = append(s.Linux.Resources.Devices,
			specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Minor: &minor, Access: "rwm"})
	}
}

// bound returns the spec's changes by -v of a single node and --device-cgroup-rule of its major.
func bound(s *specs.Spec) {
	major := int64(195)
	s.Mounts = append(s.Mounts, specs.Mount{Destination: "/stolen", Type: "bind", Source: "/dev/nvidia3", Options: []string{"bind"}})
	s.Linux.Resources.Devices = append(s.Linux.Resources.Devices, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Access: "rwm"})
}

// loggedRemovals returns the removals that the log has for a container, or for its lease, by the event's
// name.
func (c *container) loggedRemovals(event, lease string) (reason string) {
	c.t.Helper()
	f, err := os.Open(c.d.Path("/var/lib/berth/events.log"))
	rig.Must(c.t, err)
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var e struct {
			Event, Lease, Reason string

			Owner struct{ Container, Bundle string }
		}
		rig.Must(c.t, json.Unmarshal(lines.Bytes(), &e))
		if e.Event != event || e.Lease != lease || lease == "" && e.Owner.Container != c.id {
			continue
		}
		if reason != "" || c.bundle != "" && e.Owner.Bundle != c.bundle {
			c.t.Errorf("another line of the log: %s", lines.Bytes())
		}
		reason = e.Reason
	}
	return reason
}

// A container that brings an accelerator without a lease finds it closed, and the log has the
// container and the closed devices.
func TestGuard(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(d entryPoint, t *testing.T) func(*specs.Spec)
		log    []string
	}{
		{"privileged", entryPoint.privileged, []string{"/dev/nvidia0", "/dev/nvidia7", "/dev/gdrdrv", "CAP_MKNOD", "rule allow a *:* rwm"}},
		{"device", func(d entryPoint, t *testing.T) func(*specs.Spec) { return d.device(t, "/dev/nvidia3") }, []string{"/dev/nvidia3"}},
		{"extra devices", func(d entryPoint, t *testing.T) func(*specs.Spec) { return d.device(t, "/dev/nvidia-nvswitch") }, []string{"/dev/nvidia-nvswitch2"}},
		{"bind", func(entryPoint, *testing.T) func(*specs.Spec) { return bound }, []string{"/stolen", "195"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			eachKind(t, "dgx-h100", kindsWithBundle(), func(t *testing.T, d entryPoint) {
				c := d.run(t, task{change: tt.change(d, t)})
				c.opens()
				if said := c.ask("open /stolen")[0]; said != readWriteBoth("ENOENT") && said != readWriteBoth("ok") {
					t.Errorf("the bound node: %s", said) // an empty file is the mount point that was left
				}
				c.wantAnswer("open /host/dev/null", "ok ok ok")
				c.checkLog(tt.log)
				c.end()
			})
		})
	}
}

// checkLog checks that the wrapper has logged what it closed.
func (c *container) checkLog(want []string) {
	c.t.Helper()
	if c.d.way != byWrapper && c.d.way != byHook {
		return
	}
	reason := c.loggedRemovals("guarded", "")
	for _, w := range want {
		if !strings.Contains(reason, w) {
			c.t.Errorf("the log doesn't say %q: %q", w, reason)
		}
	}
}

// A lease opens no other device, and the log names the container that tried.
func TestGuardBesideALease(t *testing.T) {
	for name, change := range map[string]func(d entryPoint, t *testing.T) func(*specs.Spec){
		"privileged": entryPoint.privileged, "bind": func(entryPoint, *testing.T) func(*specs.Spec) { return bound },
	} {
		t.Run(name, func(t *testing.T) {
			eachKind(t, "dgx-h100", allKinds(), func(t *testing.T, d entryPoint) {
				c := d.run(t, task{request: "device=5", change: change(d, t), flags: []string{"-v", "/dev/nvidia3:/stolen"}})
				c.opens()
				if reason := c.loggedRemovals("prepared", c.lease().ID); !strings.Contains(reason, "/dev/nvidia0") && !strings.Contains(reason, "/dev/nvidia3") { // of many the first are named
					t.Errorf("the log says %q", reason)
				}
				c.end()
			})
		})
	}
}

const secret = "a key of the admin's, 0123456789abcdef"

// writeKey writes the admin's secret, and returns the policy that names its file.
func writeKey(t *testing.T, mode os.FileMode) (policy string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "exempt.key")
	rig.Must(t, os.WriteFile(path, []byte(secret+"\n"), mode))
	rig.Must(t, os.Chmod(path, mode))
	return `exempt_key = "` + path + `"`
}

// exemption has a container's annotations, and the admin's policy.
type exemption struct {
	policy      string
	env         []string
	annotations map[string]string
	bundle      string // below a directory of the test's own
}

func (d entryPoint) exempted(t *testing.T, e exemption) task {
	t.Helper()
	k := task{env: e.env, policy: e.policy, change: func(s *specs.Spec) {
		d.privileged(t)(s)
		for name, value := range e.annotations {
			s.Annotations[name] = value
		}
	}}
	if e.bundle != "" {
		k.bundle = filepath.Join(t.TempDir(), e.bundle)
		rig.Must(t, os.MkdirAll(k.bundle, 0o755))
	}
	return k
}

const (
	podNamespace = "io.kubernetes.cri.sandbox-namespace"
	ofCRI        = "io.containerd.runtime.v2.task/k8s.io/0123456789abcdef"
	ofDocker     = "io.containerd.runtime.v2.task/moby/0123456789abcdef"
	monitoring   = `exempt_namespaces = ["gpu-operator", "monitoring"]`
)

// An exempt container has all of the host's accelerators, as its engine's spec says.
func TestExempt(t *testing.T) {
	for name, e := range map[string]func(t *testing.T) exemption{
		"by the key": func(t *testing.T) exemption {
			return exemption{policy: writeKey(t, 0o600), annotations: map[string]string{"berth.exempt": secret}}
		},
		"by the pod's namespace": func(*testing.T) exemption {
			return exemption{policy: monitoring, annotations: map[string]string{podNamespace: "monitoring"}, bundle: ofCRI}
		},
		"for there is no guard": func(*testing.T) exemption { return exemption{policy: "guard = false"} },
	} {
		t.Run(name, func(t *testing.T) {
			eachKind(t, "dgx-h100", kindsWithBundle(), func(t *testing.T, d entryPoint) {
				c := d.run(t, d.exempted(t, e(t)))
				for _, dev := range d.accelerators(t) {
					for _, path := range []string{dev.path, "/host" + dev.path, "/nodes/" + dev.number()} {
						if got := c.ask("open " + path)[0]; got != readWriteBoth("ENXIO") {
							t.Errorf("open %s: %s", path, got)
						}
					}
				}
				if reason := c.loggedRemovals("guarded", ""); reason != "" {
					t.Errorf("the log says %q", reason)
				}
				c.end()
			})
		})
	}
}

// Data that tenants can write exempts no container.
func TestForgedExemptions(t *testing.T) {
	annotated := func(name, value string) map[string]string { return map[string]string{name: value} }
	for name, e := range map[string]func(t *testing.T) exemption{
		"another key": func(t *testing.T) exemption {
			return exemption{policy: writeKey(t, 0o600), annotations: annotated("berth.exempt", secret+"0")}
		},
		"the key's beginning": func(t *testing.T) exemption {
			return exemption{policy: writeKey(t, 0o600), annotations: annotated("berth.exempt", secret[:20])}
		},
		"no key": func(t *testing.T) exemption {
			return exemption{policy: writeKey(t, 0o600), annotations: annotated("berth.exempt", "")}
		},
		"a key where there is none": func(*testing.T) exemption {
			return exemption{annotations: annotated("berth.exempt", "true")}
		},
		"the key in the environment": func(t *testing.T) exemption {
			return exemption{policy: writeKey(t, 0o600), env: []string{"berth.exempt=" + secret, "BERTH_EXEMPT=" + secret}}
		},
		"a pod's namespace under Docker": func(*testing.T) exemption {
			return exemption{policy: monitoring, annotations: annotated(podNamespace, "monitoring"), bundle: ofDocker}
		},
		"a pod's namespace without containerd": func(*testing.T) exemption {
			return exemption{policy: monitoring, annotations: annotated(podNamespace, "monitoring")}
		},
		"another namespace": func(*testing.T) exemption {
			return exemption{policy: monitoring, annotations: annotated(podNamespace, "default"), bundle: ofCRI}
		},
		"no namespace": func(*testing.T) exemption { return exemption{policy: monitoring, bundle: ofCRI} },
		"the pod's namespace in the environment": func(*testing.T) exemption {
			return exemption{policy: monitoring, env: []string{podNamespace + "=monitoring"}, bundle: ofCRI}
		},
		"berth's own annotations": func(*testing.T) exemption {
			return exemption{policy: monitoring, annotations: map[string]string{"dev.berth.exempt": "true", "dev.berth.lease": "0123456789ab"}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachKind(t, "dgx-h100", []kind{kindsWithBundle()[0], kindsWithBundle()[3]}, func(t *testing.T, d entryPoint) {
				c := d.run(t, d.exempted(t, e(t)))
				c.opens()
				c.checkLog([]string{"/dev/nvidia0"})
				c.end()
			})
		})
	}
}

// A key that other users can read is no secret: a container with it isn't started.
func TestReadableKeyIsRefused(t *testing.T) {
	eachKind(t, "dgx-h100", kindsWithBundle(), func(t *testing.T, d entryPoint) {
		k := d.exempted(t, exemption{policy: writeKey(t, 0o644), annotations: map[string]string{"berth.exempt": secret}})
		d.wantRefused(t, k, "policy.exempt_key", "can be read by users other than root")
	})
}
