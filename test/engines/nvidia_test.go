package engines

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// The driver of the simulated server.
const (
	driverLibs    = "/usr/lib/x86_64-linux-gnu"
	driverVersion = "550.163.01"
)

// installToolkit installs NVIDIA's Container Toolkit as it was set up before berth: programs that only
// record their calls, a CDI spec as nvidia-ctk writes it, the hook for podman, and Docker's
// configuration, whose runtime "nvidia" is berth's now.
func installToolkit(t *testing.T, h *host) {
	t.Helper()
	for _, name := range []string{"nvidia-container-runtime-hook", "nvidia-cdi-hook", "nvidia-ctk", "nvidia-container-runtime", "nvidia-container-cli"} {
		h.write(t, "/usr/bin/"+name, "#!/bin/sh\ncat >/dev/null\necho \"$0 $*\" >>/run/nvidia-ran\n")
		h.do(t, "chmod", "755", "/usr/bin/"+name)
	}
	h.do(t, shared.Berth, "cdi", "remove")
	h.do(t, shared.Berth, "cdi", "generate") // names other than NVIDIA's
	h.write(t, "/etc/cdi/nvidia.yaml", nvidiaCDI())
	h.write(t, "/usr/share/containers/oci/hooks.d/oci-nvidia-hook.json", `{"version": "1.0.0", "hook": {"path": "/usr/bin/nvidia-container-runtime-hook",
		"args": ["nvidia-container-runtime-hook", "prestart"], "env": ["PATH=`+usualPath+`"]},
		"when": {"always": true, "commands": [".*"]}, "stages": ["prestart"]}`)
	h.write(t, "/etc/docker/daemon.json", `{"default-runtime": "nvidia", "runtimes": {"nvidia": {"args": [], "path": "`+program("berth")+`"}}}`)
}

// nvidiaCDI is a spec of eight GPUs as nvidia-ctk cdi generate writes it, shortened.
func nvidiaCDI() string {
	var b strings.Builder
	device := func(name string, indexes ...int) {
		fmt.Fprintf(&b, "- name: %q\n  containerEdits:\n    deviceNodes:\n", name)
		for _, i := range indexes {
			fmt.Fprintf(&b, "    - path: /dev/nvidia%d\n", i)
		}
		b.WriteString("    hooks:\n    - args: [nvidia-cdi-hook, chmod, --mode, \"755\", --path, /dev/dri]\n      hookName: createContainer\n      path: /usr/bin/nvidia-cdi-hook\n")
	}
	b.WriteString("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n")
	var all []int
	for i := range 8 {
		device(fmt.Sprint(i), i)
		all = append(all, i)
	}
	device("all", all...)
	b.WriteString("containerEdits:\n  env:\n  - NVIDIA_VISIBLE_DEVICES=void\n  deviceNodes:\n  - path: /dev/nvidia-uvm\n  - path: /dev/nvidia-uvm-tools\n  - path: /dev/nvidiactl\n  hooks:\n")
	for _, words := range []string{
		"create-symlinks, --link, \"libcuda.so.1::" + driverLibs + "/libcuda.so\"",
		"enable-cuda-compat, --host-driver-version=" + driverVersion,
		"update-ldcache, --folder, " + driverLibs,
	} {
		fmt.Fprintf(&b, "  - args: [nvidia-cdi-hook, %s]\n    hookName: createContainer\n    path: /usr/bin/nvidia-cdi-hook\n", words)
	}
	b.WriteString("  mounts:\n")
	for _, file := range []string{
		driverLibs + "/libcuda.so." + driverVersion, driverLibs + "/libnvidia-ml.so." + driverVersion,
		"/usr/bin/nvidia-smi", "/run/nvidia-persistenced/socket",
	} {
		fmt.Fprintf(&b, "  - containerPath: %s\n    hostPath: %s\n    options: [ro, nosuid, nodev, rbind, rprivate]\n", file, file)
	}
	return b.String()
}

// ran returns the calls of NVIDIA's programs since its last call.
func (h *host) ran(t *testing.T) string {
	t.Helper()
	return h.do(t, "sh", "-c", "cat /run/nvidia-ran 2>/dev/null; rm -f /run/nvidia-ran")
}

// policy sets the policy in the host's configuration.
func (h *host) policy(t *testing.T, words string) {
	t.Helper()
	h.write(t, "/etc/berth/config.toml", fmt.Sprintf("runtime = 'runc'\nberth = %q\n[policy]\n%s\n", shared.Berth, words))
}

// With NVIDIA's toolkit beside berth, the usual commands get GPUs from berth's ledger, and no
// program of the toolkit runs.
func TestToolkitBeside(t *testing.T) {
	skipUnlessWanted(t)
	for _, cgroup := range []string{"v2", "v1"} {
		t.Run(cgroup, func(t *testing.T) { toolkitBeside(t, startFor(t, "-nvidia", "forky", cgroup)) })
	}
}

func toolkitBeside(t *testing.T, h *host) {
	installToolkit(t, h)
	containerd().prepare(t, h)
	startDockerd(t, h, usualPath) // Docker finds NVIDIA's own hook
	podman().prepare(t, h)
	h.do(t, "sh", "-c", `tar -C "$0" -cf /tmp/cuda.tar . && podman import --change 'ENV NVIDIA_VISIBLE_DEVICES=all' /tmp/cuda.tar localhost/cuda`, image)
	t.Run("docker", func(t *testing.T) { toolkitDocker(t, h) })
	t.Run("podman", func(t *testing.T) { toolkitPodman(t, h) })
	t.Run("containerd", func(t *testing.T) { toolkitContainerd(t, h) })
	t.Run("policies", func(t *testing.T) { toolkitPolicies(t, h) })
	// Check that calls of the programs are recorded: a runtime that isn't berth.
	h.run(t, "docker", "run", "--rm", "--runtime", "runc", "--network", "none", "--device", "nvidia.com/gpu=3", "test", "/probe")
	if got := h.ran(t); strings.Count(got, "/usr/bin/nvidia-cdi-hook") != 4 {
		t.Errorf("under runc these run: %s", got)
	}
	if log := h.do(t, "cat", "/var/lib/berth/events.log"); !strings.Contains(log, "4 hooks of /usr/bin/nvidia-cdi-hook, which berth replaces; 4 mounts of driver files by NVIDIA's CDI spec") ||
		!strings.Contains(log, "1 hook of /usr/bin/nvidia-container-runtime-hook, which berth replaces") {
		t.Errorf("the log doesn't tell: %s", log)
	}
}

// toolkitDocker tests the commands of Docker's users; the default runtime is berth under the name
// nvidia.
func toolkitDocker(t *testing.T, h *host) {
	holder := place{h, dockerRun("--device", "nvidia.com/gpu=0", "test"), ""}.start(t, containerOptions{})
	if got := holder.opens(); !slices.Equal(got, []string{"nvidia0"}) {
		t.Errorf("nvidia.com/gpu=0 opens %v", got)
	}
	for _, tt := range []flagCase{
		{words: []string{"--gpus", "2", "cuda"}, count: 2},
		{words: []string{"--gpus", `"device=3"`, "cuda"}, gpus: []string{"nvidia3"}},
		{words: []string{"--device", "nvidia.com/gpu=3", "--device", "nvidia.com/gpu=5", "cuda"}, gpus: []string{"nvidia3", "nvidia5"}},
		{words: []string{"--gpus", "2", "--device", "nvidia.com/gpu=3", "test"}, says: "--gpus beside devices of NVIDIA's CDI spec"},
		{words: []string{"--device", "nvidia.com/gpu=0", "test"}, says: "1 asked, 0 of 1 free"},
		{words: []string{"--device", "nvidia.com/gpu=all", "test"}, says: "8 asked, 7 of 8 free"},
		{words: []string{"--runtime", "nvidia", "--env", "NVIDIA_VISIBLE_DEVICES=all", "test"}},
		{words: []string{"cuda"}},
		{words: []string{"--privileged", "cuda"}},
		{words: []string{"--privileged", "--device", "nvidia.com/gpu=4", "cuda"}, gpus: []string{"nvidia4"}},
		{words: []string{"--device", "berth/gpus=2", "cuda"}, count: 2},
	} {
		t.Run(strings.Join(tt.words, " "), func(t *testing.T) { tt.check(t, h, "") })
	}
	holder.end()
	h.waitUntilReleased(t)
	t.Run("all", func(t *testing.T) {
		flagCase{words: []string{"--device", "nvidia.com/gpu=all", "test"}, count: 8}.check(t, h, "")
	})
	t.Run("driver files", func(t *testing.T) {
		const own = "/usr/share/misc" // a CDI device of the user's, beside NVIDIA's
		c := place{h, dockerRun("--device", "nvidia.com/gpu=3", "--volume", own+":"+own+":ro", "test"), ""}.start(t, containerOptions{})
		got := append(c.ask("open "+driverLibs+"/libcuda.so."+driverVersion), c.ask("open "+own)...)
		if want := []string{"ENOENT ENOENT ENOENT", "ok EISDIR EISDIR"}; !slices.Equal(got, want) {
			t.Errorf("their library and the user's directory: %q, want %q", got, want)
		}
		c.checkDriverFiles()
	})
	if got := h.ran(t); got != "" {
		t.Errorf("these were run: %s", got)
	}
}

// toolkitPodman tests podman with NVIDIA's hook in every container.
func toolkitPodman(t *testing.T, h *host) {
	run := func(global []string, words ...string) place {
		return place{h, engine{name: "podman", refused: 126, words: func(t *testing.T, h *host, w containerOptions) []string {
			w.global = append([]string{"--hooks-dir", "/usr/share/containers/oci/hooks.d"}, global...)
			all := podman().words(t, h, w)
			all = slices.Insert(all[:len(all)-2], len(all)-2, words...)
			return append(all, "localhost/cuda", "/probe")
		}}, "berth"}
	}
	for _, tt := range []struct {
		name    string
		place   place
		runtime string
		want    []string
	}{
		{"an image that says all", run(nil), "berth", nil},
		{"NVIDIA's device", run(nil, "--device", "nvidia.com/gpu=3"), "berth", []string{"nvidia3"}},
		{"berth's hooks, and NVIDIA's device", run([]string{"--hooks-dir", everyPrecreate(t, h)}, "--device", "nvidia.com/gpu=3"), "crun", []string{"nvidia3"}},
		{"berth's hooks, and an image that says all", run([]string{"--hooks-dir", everyPrecreate(t, h)}), "crun", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.place.runtime = tt.runtime
			c := tt.place.start(t, containerOptions{})
			if got := c.opens(); !slices.Equal(got, tt.want) {
				t.Errorf("it opens %v, want %v", got, tt.want)
			}
			c.end()
			h.waitUntilReleased(t)
			if got := h.ran(t); got != "" {
				t.Errorf("these were run: %s", got)
			}
		})
	}
}

// toolkitContainerd tests ctr run --gpus, with which containerd calls NVIDIA's program.
func toolkitContainerd(t *testing.T, h *host) {
	ctr := containerd()
	p := place{h, engine{name: ctr.name, refused: ctr.refused, words: func(t *testing.T, h *host, w containerOptions) []string {
		words := ctr.words(t, h, w)
		return slices.Insert(words, 2, "--gpus", "3", "--gpus", "5", "--env", "NVIDIA_VISIBLE_DEVICES=all")
	}}, "berth"}
	c := p.start(t, containerOptions{})
	if got := c.opens(); !slices.Equal(got, []string{"nvidia3", "nvidia5"}) {
		t.Errorf("it opens %v", got)
	}
	c.end()
	h.waitUntilReleased(t)
	if got := h.ran(t); got != "" {
		t.Errorf("these were run: %s", got)
	}
}

// everyPrecreate returns a directory of hooks by which berth prepares every container.
func everyPrecreate(t *testing.T, h *host) string {
	t.Helper()
	dir := filepath.Join(h.dir, "every")
	rig.Must(t, os.MkdirAll(dir, 0o755))
	rig.Must(t, os.WriteFile(filepath.Join(dir, "berth.json"), []byte(`{"version": "1.0.0", "hook": {"path": "`+filepath.Join(shared.Dir, "berth-hook")+
		`", "args": ["berth-hook", "precreate"]}, "when": {"always": true}, "stages": ["precreate"]}`), 0o644))
	return dir
}

// toolkitPolicies tests the policies for variables and for NVIDIA's names.
func toolkitPolicies(t *testing.T, h *host) {
	holder := place{h, dockerRun("--device", "berth/gpus=gpu0", "test"), ""}.start(t, containerOptions{})
	const refused = "NVIDIA_VISIBLE_DEVICES=all asks for no GPU here: --gpus N, --device berth/gpus=N"
	visible := func(value string) []string { return []string{"--env", "NVIDIA_VISIBLE_DEVICES=" + value, "cuda"} }
	for _, tt := range []struct {
		policy string
		cases  []flagCase
	}{
		{"visible_devices = 'ignore'", []flagCase{{words: visible("all")}}},
		{"visible_devices = 'count'", []flagCase{
			{words: visible("all"), count: 1},
			{words: []string{"cuda"}, count: 1},
			{words: visible("0,1,2"), count: 3},
			{words: visible("void")},
			{words: []string{"--gpus", "2", "cuda"}, count: 2},
		}},
		{"visible_devices = 'honour'", []flagCase{
			{words: visible("2,3"), gpus: []string{"nvidia2", "nvidia3"}},
			{words: visible("all"), says: "request all: 8 asked, 7 of 8 free"},
		}},
		{"visible_devices = 'refuse'", []flagCase{
			{words: visible("all"), says: refused},
			{words: []string{"cuda"}, says: refused},
			{words: visible("void")},
			{words: []string{"test"}},
			{words: []string{"--gpus", "1", "cuda"}, count: 1},
		}},
		{"nvidia_indices = 'exact'", []flagCase{{words: []string{"--device", "nvidia.com/gpu=0", "--device", "nvidia.com/gpu=1", "test"}, says: "2 asked, 1 of 2 free"}}},
		{"nvidia_indices = 'count'", []flagCase{
			{words: []string{"--device", "nvidia.com/gpu=0", "--device", "nvidia.com/gpu=1", "test"}, count: 2},
			{words: []string{"--device", "nvidia.com/gpu=2", "test"}, gpus: []string{"nvidia2"}},
		}},
	} {
		h.policy(t, tt.policy)
		for _, c := range tt.cases {
			t.Run(tt.policy+", "+strings.Join(c.words, " "), func(t *testing.T) { c.check(t, h, "") })
		}
	}
	t.Run("exempt", func(t *testing.T) {
		const secret = "a secret of 24 bytes or so"
		h.do(t, "sh", "-c", `umask 077; printf %s "$0" >/etc/berth/key`, secret)
		h.policy(t, "exempt_key = '/etc/berth/key'")
		all := []string{"--device", "nvidia.com/gpu=all", "--annotation", "berth.exempt=" + secret, "test"}
		c := place{h, dockerRun(all...), ""}.start(t, containerOptions{})
		if got := c.opens(); len(got) != 8 || len(h.live(t)) != 1 {
			t.Errorf("it opens %v, beside %+v", got, h.live(t))
		}
		c.end()
		if got := h.ran(t); strings.Count(got, "/usr/bin/nvidia-cdi-hook") != 4 {
			t.Errorf("these were run: %s", got)
		}
		all[3] = "berth.exempt=another secret of 24 bytes"
		flagCase{words: all, says: "8 asked, 7 of 8 free"}.check(t, h, "")
	})
	h.policy(t, "")
	holder.end()
	h.waitUntilReleased(t)
	if got := h.ran(t); got != "" {
		t.Errorf("these were run: %s", got)
	}
}

// NVIDIA's names among berth's CDI devices mean a count if the admin has configured that, with the
// wrapper and with the hook.
func TestIndicesAsCount(t *testing.T) {
	skipUnlessWanted(t)
	h := start(t, "forky", "v2")
	h.once("docker", func() { docker().prepare(t, h) })
	h.policy(t, "nvidia_indices = 'count'")
	t.Cleanup(func() { h.configure(t) })
	for _, runtime := range []string{"runc", "berth"} {
		t.Run(runtime, func(t *testing.T) {
			p := place{h, docker(), runtime}
			holder := p.start(t, containerOptions{devices: []string{"berth/gpus=gpu0"}})
			c := p.start(t, containerOptions{devices: []string{"nvidia.com/gpu=0", "nvidia.com/gpu=1"}})
			if got := c.opens(); len(got) != 2 || slices.Contains(got, "nvidia0") {
				t.Errorf("it opens %v", got)
			}
			exact := p.start(t, containerOptions{devices: []string{"nvidia.com/gpu=5"}})
			if got := exact.opens(); !slices.Equal(got, []string{"nvidia5"}) {
				t.Errorf("nvidia.com/gpu=5 opens %v", got)
			}
			for _, c := range []*container{c, exact, holder} {
				c.end()
			}
			h.waitUntilReleased(t)
		})
	}
}
