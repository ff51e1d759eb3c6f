package engines

import (
	"slices"
	"testing"
)

// Nothing that an image's author writes is a request: neither the environment, nor NVIDIA's hook,
// which podman puts into every container, nor annotations, which podman 4 copies from the image
// into the container's spec.
func TestForgedImage(t *testing.T) {
	skipUnlessWanted(t)
	for _, suite := range []string{"forky", "bookworm"} {
		for _, runtime := range []string{"berth", "crun"} {
			t.Run(suite+"/"+runtime, func(t *testing.T) {
				h := start(t, suite, "v2")
				h.once("podman", func() { podman().prepare(t, h) })
				h.policy(t, "podman_annotation = false")
				t.Cleanup(func() { h.configure(t) })
				h.write(t, "/usr/bin/nvidia-container-runtime-hook", "#!/bin/sh\necho ran >/run/nvidia-ran\n")
				h.write(t, "/tmp/hooks/nvidia.json", `{"version": "1.0.0", "hook": {"path": "/usr/bin/nvidia-container-runtime-hook", "args": ["nvidia-container-runtime-hook", "prestart"],
					"env": ["PATH=`+usualPath+`"]}, "when": {"always": true}, "stages": ["prestart"]}`)
				h.do(t, "chmod", "755", "/usr/bin/nvidia-container-runtime-hook")
				h.write(t, "/tmp/Containerfile", "FROM localhost/test\nENV NVIDIA_VISIBLE_DEVICES=all BERTH_GPUS=1 container=docker\n")
				for _, manager := range []string{"docker", "cri-o", ""} {
					h.do(t, "podman", "build", "--quiet", "--isolation", "chroot", "--annotation", "io.container.manager="+manager, "--annotation", "berth.gpus=1",
						"--annotation", "dev.berth.lease=0123456789ab", "--annotation", "run.oci.delegate-cgroup=../forged",
						"--annotation", "run.oci.seccomp_bpf_data=BgAAAAAA/38GAAAAAAD/fwYAAAAAAP9/", "--tag", "localhost/forged", "--file", "/tmp/Containerfile", "/tmp/hooks")
					hooks := []string{"--hooks-dir", "/tmp/hooks"}
					if runtime != "berth" {
						hooks = append(hooks, "--hooks-dir", everyPrecreate(t, h))
					}
					p := place{h, engine{name: "podman", refused: 126, words: func(t *testing.T, h *host, w containerOptions) []string {
						w.global = hooks
						words := podman().words(t, h, w)
						return append(words[:len(words)-2], "localhost/forged", "/probe")
					}}, runtime}
					p.checkNoRequest(t, manager)
				}
				if got := h.ran(t); got != "" {
					t.Errorf("NVIDIA's hook was run: %s", got)
				}
			})
		}
	}
}

// checkNoRequest starts a container, which gets no GPU. If podman passes the annotation on, berth
// refuses it, and says that it is no request.
func (p place) checkNoRequest(t *testing.T, manager string) {
	t.Helper()
	id := newID()
	cmd := p.command(p.words(t, p.host, containerOptions{id: id, runtime: p.runtime})...)
	got, err := cmd.CombinedOutput()
	if err != nil {
		if !slices.Contains([]int{126, 127}, cmd.ProcessState.ExitCode()) {
			t.Errorf("image of %q: %v: %s", manager, err, got)
		}
		p.waitForLeases(t, nil, 0)
		return
	}
	c := p.start(t, containerOptions{})
	if opened := c.opens(); len(opened) > 0 {
		t.Errorf("an image of %q opens %v", manager, opened)
	}
	if live := p.live(t); len(live) > 0 {
		t.Errorf("an image of %q has %+v", manager, live)
	}
	c.end()
}
