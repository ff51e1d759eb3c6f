package hook

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/test/rig"
)

// vendor is the CDI spec of another vendor's device with two interfaces.
const vendor = `cdiVersion: "1.1.0"
kind: vendor.example/nic
devices:
- name: port0
  containerEdits:
    netDevices:
    - {hostInterfaceName: enp1, name: eth1}
    - {hostInterfaceName: enp2, name: enp2}
- name: port9
  containerEdits:
    netDevices: [{hostInterfaceName: enp1, name: eth1}, {hostInterfaceName: enp9, name: eth9}]
`

// network moves the test and its processes into a network namespace with the vendor's interfaces.
// It ends with the test.
func (w *world) network(t *testing.T) (config string) {
	t.Helper()
	runtime.LockOSThread()
	rig.Must(t, unix.Unshare(unix.CLONE_NEWNET))
	ip(t, "link add enp1 type veth peer name peer1")
	ip(t, "link add enp2 type veth peer name peer2")
	ip(t, "addr add 192.0.2.1/24 dev enp1")
	w.Do(t, "sh", "-c", `mkdir -p /etc/cdi && printf %s "$0" >/etc/cdi/nic.yaml`, vendor)
	t.Cleanup(func() { w.Do(t, "rm", "/etc/cdi/nic.yaml") })
	return w.configure(t, "[policy]\ncdi = ['vendor.example/nic']\n")
}

func ip(t *testing.T, line string) string {
	t.Helper()
	out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip %s: %v\n%s", line, err, out)
	}
	return string(out)
}

// inside returns the output of ip in the container's network namespace.
func (c *container) inside(line string) string {
	c.t.Helper()
	pid, err := os.ReadFile(filepath.Join(c.bundle, "pid"))
	rig.Must(c.t, err)
	out, err := exec.Command("nsenter", append([]string{"--net", "--target", strings.TrimSpace(string(pid)), "ip"}, strings.Fields(line)...)...).CombinedOutput()
	if err != nil {
		c.t.Fatalf("ip %s: %v\n%s", line, err, out)
	}
	return string(out)
}

// entryPoint is an entry point: how a spec requests the device, and which program creates the
// container.
type entryPoint struct {
	name, program string
	ask           func(s *specs.Spec, device string) *specs.Spec
}

func (w *world) entryPoints(config string) []entryPoint {
	return []entryPoint{
		{"wrapper", w.Runtime, func(s *specs.Spec, device string) *specs.Spec {
			s.Annotations = map[string]string{"berth.gpus": "vendor.example/nic=" + device}
			return s
		}},
		{"createRuntime", w.runtime, func(s *specs.Spec, device string) *specs.Spec {
			return withHooks(s, entry(config, "createRuntime", "--request", "vendor.example/nic="+device), "createRuntime")
		}},
	}
}

// The interfaces of a CDI device are in the container, and disappear with it.
func TestNetDevices(t *testing.T) {
	eachWorld(t, "dgx-h100", func(t *testing.T, w *world) {
		for i, d := range w.entryPoints("") {
			t.Run(d.name, func(t *testing.T) {
				config := w.network(t)
				c := run(t, w, d.program, config, w.entryPoints(config)[i].ask(w.plain(t), "port0"))
				got := c.inside("addr")
				for _, want := range []string{"eth1@", "192.0.2.1/24", "altname enp1", "enp2@", ",UP"} {
					if !strings.Contains(got, want) {
						t.Errorf("no %s inside:\n%s", want, got)
					}
				}
				if left := ip(t, "-o link"); strings.Contains(left, "enp") {
					t.Errorf("left on the host:\n%s", left)
				}
				written, err := os.ReadFile(filepath.Join(c.bundle, "config.json"))
				rig.Must(t, err)
				if strings.Contains(string(written), "netDevices") {
					t.Error("the spec has netDevices: a runtime that knows them would move them too")
				}
				c.delete()
				c.checkNothingLeft()
			})
		}
	})
}

// With precreate they come as well: by a hook in the spec that it prints.
func TestNetDevicesPrecreate(t *testing.T) {
	eachWorld(t, "dgx-h100", func(t *testing.T, w *world) {
		config := w.network(t)
		spec := withHooks(w.plain(t), entry(config, "createRuntime", "--request", "vendor.example/nic=port0"), "createRuntime")
		c := prepare(t, w, w.runtime, config, spec)
		in, out, done := c.pipes()
		// The hook's caller lives until the container exists.
		cmd := w.Command("sh", "-c", fmt.Sprintf(`exec 3<&0; %s --config %s precreate <"$1/config.json" >"$1/changed" && mv "$1/changed" "$1/config.json" && shift && "$@" <&3`, hook, config), "sh", c.bundle)
		cmd.Args = append(cmd.Args, append([]string{c.program}, c.createArguments()...)...)
		cmd.Stdin, cmd.Stdout = in, out
		said := w.Run(t, cmd)
		done()
		if said.Code != 0 {
			t.Fatalf("exit code %d: %s", said.Code, said.Err)
		}
		if got := c.inside("addr show dev eth1"); !strings.Contains(got, "192.0.2.1/24") {
			t.Errorf("inside:\n%s", got)
		}
		c.delete()
		c.checkNothingLeft()
	})
}

// The error names an interface that can't be moved, and nothing is changed or left.
func TestNoNetDevices(t *testing.T) {
	eachWorld(t, "dgx-h100", func(t *testing.T, w *world) {
		for i, d := range w.entryPoints("") {
			for _, tt := range []struct {
				name, device, want string
				change             func(*specs.Spec)
			}{
				{"missing", "port9", "network device enp9: it isn't in the host's network namespace", func(*specs.Spec) {}},
				{
					"the host's network", "port0", "network device enp1: the container has the host's network namespace, and none of its own",
					func(s *specs.Spec) { s.Linux.Namespaces = s.Linux.Namespaces[:2] },
				},
				{
					"the host's network by its path", "port0", "network device enp1: the container has the host's network namespace, and none of its own",
					func(s *specs.Spec) {
						s.Linux.Namespaces[2].Path = fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
					},
				},
			} {
				t.Run(d.name+", "+tt.name, func(t *testing.T) {
					config := w.network(t)
					spec := w.entryPoints(config)[i].ask(w.plain(t), tt.device)
					tt.change(spec)
					before := ip(t, "-o addr")
					c := prepare(t, w, d.program, config, spec)
					if said := c.create(); said.Code == 0 || !strings.Contains(said.Err, tt.want) {
						t.Errorf("exit code %d, %q; want %q", said.Code, said.Err, tt.want)
					}
					_ = c.act("delete", "--force", c.id) // as engines do
					c.checkNothingLeft()
					if after := ip(t, "-o addr"); after != before {
						t.Errorf("the host has\n%s\nand had\n%s", after, before)
					}
				})
			}
		}
	})
}
