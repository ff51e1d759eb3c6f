package devicerules

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/test/rig"
)

// wantRefused checks that the wrapper refuses to create a container and leaves nothing. If it creates
// one, the error says what that container opens.
func wantRefused(t *testing.T, w *world, config, text, want string, global ...string) {
	t.Helper()
	c := newContainer(t, w, config)
	c.bundle = t.TempDir()
	rig.Must(t, os.WriteFile(c.config(), []byte(strings.ReplaceAll(text, "CONTAINER", c.id)), 0o600))
	c.written = c.identifyConfig()
	c.global = append([]string{"--root", filepath.Join(c.bundle, "state")}, global...)
	t.Cleanup(func() { _ = c.act("delete", "--force", c.id) })
	cmd := w.Command(w.Runtime, append(c.global, "create", "--bundle", c.bundle, c.id)...)
	done := c.pipes(cmd)
	said := w.Run(t, cmd)
	done()
	if said.Code == 0 {
		c.must("start", c.id)
		t.Fatalf("the container was created; it opens %v", c.opens())
	}
	if said.Code != 1 || !strings.Contains(said.Err, want) || strings.Count(said.Err, "\n") != 1 {
		t.Errorf("exit code %d: %s\nwant %s", said.Code, said.Err, want)
	}
	if l := c.lease(); l.ID != "" {
		t.Errorf("it left a lease: %+v", l)
	}
	if left, err := filepath.Glob(c.bundle + "/*"); err != nil || !slices.Equal(left, []string{c.config()}) || c.written != c.identifyConfig() {
		t.Errorf("the bundle isn't as it was: %v, %v", left, err)
	}
}

// opens lists the accelerators that the container opens by nodes of its image.
func (c *container) opens() (paths []string) {
	c.t.Helper()
	var commands []string
	for _, d := range c.w.devices {
		commands = append(commands, "open /nodes/"+d.number())
	}
	for i, answer := range c.ask(commands...) {
		if answer == "ENXIO" {
			paths = append(paths, c.w.devices[i].path)
		}
	}
	return paths
}

// specText returns the spec as an engine writes it, with a cgroup of the container's own.
func specText(t *testing.T, spec *specs.Spec) string {
	t.Helper()
	spec.Linux.CgroupsPath = "/CONTAINER"
	data, err := json.Marshal(spec)
	rig.Must(t, err)
	return string(data)
}

// eachRequest runs f without and with a request.
func eachRequest(t *testing.T, f func(t *testing.T, annotations map[string]string)) {
	t.Run("asking for nothing", func(t *testing.T) { f(t, nil) })
	t.Run("asking", func(t *testing.T) { f(t, map[string]string{"berth.gpus": "1"}) })
}

// Rules that runc and crun read differently.
func TestAmbiguousRulesAreRefused(t *testing.T) {
	const wrap = int64(1) << 32
	odd := map[string]specs.LinuxDeviceCgroup{
		"major 4294967491":  {Type: "c", Major: ptr(195 + wrap)},
		"minor 4294967299":  {Type: "c", Major: ptr(195), Minor: ptr(3 + wrap)},
		"major -2":          {Type: "c", Major: ptr(-2)},
		"major -4294967101": {Type: "c", Major: ptr(195 - wrap)},
		`type "cx"`:         {Type: "cx", Major: ptr(195)},
		`type "u"`:          {Type: "u", Major: ptr(195)},
		`type "C"`:          {Type: "C", Major: ptr(195)},
		`type "ax"`:         {Type: "ax"},
	}
	eachWorld(t, "dgx-h100", func(t *testing.T, w *world) {
		for _, name := range slices.Sorted(maps.Keys(odd)) {
			t.Run(name, func(t *testing.T) {
				eachRequest(t, func(t *testing.T, annotations map[string]string) {
					spec, rule := w.plainSpec(t), odd[name]
					rule.Allow, rule.Access = true, "rwm"
					spec.Annotations = annotations
					spec.Linux.Resources.Devices = append(spec.Linux.Resources.Devices, rule)
					wantRefused(t, w, w.configure(t, ""), specText(t, spec), "config.json: linux.resources.devices[1]: "+name)
				})
			})
		}
	})
}

// Keys and values that end early for a runtime written in C, which would read another document than
// berth.
func TestEarlyEndsAreRefused(t *testing.T) {
	open := `"linux\u0000":{"cgroupsPath":"/CONTAINER","namespaces":[{"type":"pid"},{"type":"mount"}],"resources":{"devices":[{"allow":true,"access":"rwm"}]}},"linux":`
	early := map[string]struct{ old, new, want string }{
		"sections": {`"linux":`, open, `string "linux\u0000" at byte `},
		"rule":     {`"allow":false,`, `"allow\u0000":true,"allow":false,`, `string "allow\u0000" at byte `},
		"value":    {`"type":"mount"}`, `"type":"mount\u0000x"}`, `string "mount\u0000x" at byte `},
	}
	eachWorld(t, "dgx-h100", func(t *testing.T, w *world) {
		for name, e := range early {
			t.Run(name, func(t *testing.T) {
				eachRequest(t, func(t *testing.T, annotations map[string]string) {
					spec := w.plainSpec(t)
					spec.Annotations = annotations
					whole := specText(t, spec)
					if strings.Count(whole, e.old) != 1 {
						t.Fatalf("%s isn't there once: %s", e.old, whole)
					}
					wantRefused(t, w, w.configure(t, ""), strings.Replace(whole, e.old, e.new, 1), e.want)
				})
			})
		}
	})
}

// Without a cgroup no rule applies, also for plain containers.
func TestNoCgroupIsRefused(t *testing.T) {
	eachWorld(t, "dgx-h100", func(t *testing.T, w *world) {
		if w.runtime != "crun" {
			return // only crun supports it
		}
		const flag = "--cgroup-manager=disabled"
		eachRequest(t, func(t *testing.T, annotations map[string]string) {
			spec := w.plainSpec(t)
			spec.Annotations = annotations
			wantRefused(t, w, w.configure(t, ""), specText(t, spec), flag+" gives container rules-", flag)
		})
	})
}

// A container with a lease needs a cgroup of its own, whose path is known.
func TestUnknownCgroupIsRefused(t *testing.T) {
	eachWorld(t, "dgx-h100", func(t *testing.T, w *world) {
		for _, path := range []string{"/../CONTAINER", "../CONTAINER", "/", "/."} {
			t.Run(path, func(t *testing.T) {
				plain := specText(t, requesting(w.plainSpec(t), "1"))
				wantRefused(t, w, w.configure(t, ""), strings.Replace(plain, `"/CONTAINER"`, `"`+path+`"`, 1), "config.json: linux.cgroupsPath: ")
			})
		}
	})
}
