package engines

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/test/rack"
	"github.com/berth-gpu/berth/test/rig"
)

// bootHost returns a host that a real systemd has booted, with the units that it starts at boot.
func bootHost(t *testing.T, suite, cgroup, purpose string) server {
	t.Helper()
	hosts.Lock()
	defer hosts.Unlock()
	key := suite + "-" + cgroup + "-booted-" + purpose
	h := &host{suite: suite, cgroup: cgroup, dir: filepath.Join(shared.Dir, key), ready: map[string]bool{}}
	rig.Must(t, os.MkdirAll(h.dir, 0o755))
	hosts.started[key] = h
	var err error
	h.Host, err = rack.Start(rack.Options{Tree: trees[suite], Cgroup: cgroup, Simnode: simnode, Share: shared.Dir, Key: key, Systemd: true})
	rig.Must(t, err)
	h.configure(t)
	// The directory in which packages install programs.
	h.do(t, "sh", "-c", `cp "$0" "$0-runtime" "$0-hook" /usr/bin && sed -i "s#^berth = .*#berth = '/usr/bin/berth'#" /etc/berth/config.toml`, shared.Berth)
	// The program that a unit's reload calls is in a package that servers have and the tree
	// doesn't.
	h.do(t, "sh", "-c", `[ -e /bin/kill ] || { printf '#!/bin/sh\nkill "$@"\n' >/bin/kill && chmod 755 /bin/kill; }`)
	return server{h}
}

// setup runs berth setup and then the command that it prints. It returns the whole output.
func (s server) setup(t *testing.T, words ...string) string {
	t.Helper()
	said := s.do(t, append([]string{shared.Berth, "setup"}, words...)...)
	_, command, ok := strings.Cut(said, " it up with:\n  ")
	if ok && !slices.Contains(words, "--dry-run") {
		s.do(t, "sh", "-c", command)
	}
	return said
}

// state returns a file's owner, mode and bytes, nothing for a missing file.
func (s server) state(t *testing.T, paths ...string) string {
	t.Helper()
	return s.do(t, append([]string{"sh", "-c", `for f; do [ ! -e "$f" ] || { stat -c '%n %u:%g %a' "$f"; od -An -c "$f"; }; done`, "sh"}, paths...)...)
}

// checkHealthy checks that berth doctor finds no failure of an engine.
func (s server) checkHealthy(t *testing.T, engine string, failures int) {
	t.Helper()
	var findings []struct{ State, About, Text string }
	got := s.run(t, shared.Berth, "doctor", "--json")
	rig.Must(t, json.Unmarshal([]byte(got.out), &findings))
	n := 0
	for _, f := range findings {
		if f.About == engine && f.State == "failure" {
			n++
		}
	}
	if n != failures || (got.code == 0) != (failures == 0) {
		t.Errorf("%d of %s fail, exit code %d: %+v", n, engine, got.code, findings)
	}
}

const daemonJSON = "{ \"iptables\": false, \"ip6tables\": false,\n\t\"bridge\": \"none\", \"features\": {\"x\":true},\r\n  \"runtimes\":{\"nvidia\" : {\"args\":[],\"path\": \"nvidia-container-runtime\"}} }"

// The admin sets docker up by one command and the one that it prints, on a server with a real
// systemd; then everything is undone.
func TestSetupDocker(t *testing.T) {
	skipUnlessWanted(t)
	for _, on := range []string{"forky/v2", "bookworm/v1"} {
		t.Run(on, func(t *testing.T) {
			suite, cgroup, _ := strings.Cut(on, "/")
			s := bootHost(t, suite, cgroup, "setup")
			d := &dockerHost{server: s, runtime: "berth"}
			const config = "/etc/docker/daemon.json"
			s.write(t, config, daemonJSON)
			s.write(t, "/run/systemd/system/docker.service.d/often.conf", "[Unit]\nStartLimitIntervalSec=0\n")
			s.do(t, "sh", "-c", "chmod 640 $0 && chown 1:2 $0 && systemctl daemon-reload && systemctl restart docker", config)
			s.until(t, "docker", "info")
			s.do(t, "sh", "-c", `tar -C "$0" -c . | docker import - test`, image)
			before := s.state(t, config)

			s.checkRefused(t, "could not select device driver", "--gpus", "2")
			s.checkHealthy(t, "docker", 0)
			dry := s.setup(t, "docker", "--dry-run")
			if got := s.state(t, config); got != before || !strings.Contains(dry, `+  "runtimes":{"nvidia" : {"path":`) {
				t.Errorf("it would print\n%s\nand changed\n%s\nto\n%s", dry, before, got)
			}
			s.setup(t, "docker")
			s.until(t, "docker", "info")
			s.checkRuns(t, 2, "--runtime", "berth", "--gpus", "2")
			s.checkRuns(t, 3, "--runtime", "nvidia", "--gpus", "3")
			if suite == "forky" { // the other version supports neither
				s.checkRuns(t, 1, "--runtime", "berth", "--annotation", "berth.gpus=1")
				s.checkRuns(t, 2, "--runtime", "berth", "--device", "berth/gpus=2")
			} else {
				s.checkRefused(t, "", "--device", "berth/gpus=2")
			}
			s.checkRuns(t, 0)
			s.checkRefused(t, "berth", "--gpus", "1") // with runc
			s.checkHealthy(t, "docker", 0)
			s.checkNotRestarted(t, config)
			if said := s.setup(t, "docker"); said != "docker: nothing to change\n" {
				t.Errorf("a second time: %s", said)
			}
			s.setup(t, "docker", "--default")
			s.until(t, "docker", "info")
			s.checkRuns(t, 2, "--gpus", "2")
			s.checkRuns(t, 0)
			s.do(t, "docker", "create", "--name", "keeper", "--network", "none", "test", "/wait")
			if said := s.setup(t, "docker", "--remove"); !strings.Contains(said, "started again without it: keeper\n") {
				t.Errorf("it says %s", said)
			}
			s.until(t, "docker", "info")
			if got := s.state(t, config); got != before {
				t.Errorf("%s became %s", before, got)
			}
			s.checkRuns(t, 0)
			s.checkRefused(t, "could not select device driver", "--gpus", "2")
			if left := s.do(t, "sh", "-c", "find /etc/systemd/system/docker.service.d /var/lib/berth/engines /var/lib/berth/setup -type f -o -type l 2>/dev/null || :"); left != "/var/lib/berth/setup/.lock\n" {
				t.Errorf("it leaves %s", left)
			}
			d.removeAll(t)
		})
	}
}

// checkNotRestarted changes Docker's configuration and checks that berth doctor reports the daemon that
// runs with the old one.
func (s server) checkNotRestarted(t *testing.T, config string) {
	t.Helper()
	warns := func(want string) {
		t.Helper()
		out := s.run(t, shared.Berth, "doctor").out
		if got := strings.Contains(out, "warning  docker         runs ") || strings.Contains(out, "dockerd runs without CDI"); got != (want != "") || !strings.Contains(out, want) {
			t.Errorf("doctor doesn't say %q:\n%s", want, out)
		}
	}
	restart := func() {
		s.do(t, "systemctl", "restart", "docker")
		s.until(t, "docker", "info")
	}
	warns("")
	s.do(t, "cp", "--preserve", config, "/tmp/kept.json")
	s.do(t, "sed", "-i", `s#"runtimes":{#&"late":{"path":"/usr/bin/runc"},#`, config)
	warns("runs without the runtime late, which " + config + " has; fix: systemctl reload docker")
	s.do(t, "systemctl", "reload", "docker")
	eventually(t, func() string {
		if strings.Contains(s.run(t, shared.Berth, "doctor").out, "runs without") {
			return "it doesn't reload"
		}
		return ""
	})
	warns("")
	if s.suite == "forky" { // the other version doesn't support CDI
		s.do(t, "sed", "-i", `s#"x":true#&,"cdi":false#`, config)
		restart()
		s.do(t, "sed", "-i", `s#"cdi":false#"cdi":true#`, config)
		warns("--device berth/gpus=2 is refused: dockerd runs without CDI; fix: systemctl daemon-reload && systemctl restart docker")
	}
	s.do(t, "cp", "--preserve", "/tmp/kept.json", config)
	restart()
	warns("")
}

// checkRuns checks that docker run with these arguments gives a container so many GPUs.
func (s server) checkRuns(t *testing.T, gpus int, words ...string) {
	t.Helper()
	words = append([]string{"docker", "run", "--rm", "--interactive", "--network", "none", "--volume", "/dev:/nodes"}, words...)
	if own, all := s.runProbe(t, append(words, "test")...); len(own) != gpus || !slices.Equal(own, all) && gpus > 0 {
		t.Errorf("%v: it has %v in /dev and opens %v", words, own, all)
	}
}

// checkRefused checks that docker run with these arguments fails with this message.
func (s server) checkRefused(t *testing.T, reason string, words ...string) {
	t.Helper()
	words = append([]string{"docker", "run", "--rm", "--network", "none"}, words...)
	if got := s.run(t, append(words, "test", "/probe")...); got.code != 125 && got.code != 126 && got.code != 127 || !strings.Contains(got.err, reason) {
		t.Errorf("%v: exit code %d: %s", words, got.code, got.err)
	}
}

// A killed setup leaves each file either as it was or complete; repeating it completes it, and its
// removal restores every byte.
func TestSetupKilled(t *testing.T) {
	skipUnlessWanted(t)
	s := server{startFor(t, "-setup", "forky", "v1")}
	const config, dropIn = "/etc/docker/daemon.json", "/etc/systemd/system/docker.service.d/berth.conf"
	s.write(t, config, daemonJSON)
	sets := map[string][]string{
		"docker":     {config, dropIn},
		"containerd": {"/etc/containerd/config.toml", "/etc/containerd/conf.d/berth.toml"},
	}
	states := map[string][]string{} // the two states of each file, without berth and with it
	note := func() {
		for engine, paths := range sets {
			for _, p := range paths {
				states[engine+p] = append(states[engine+p], s.state(t, p))
			}
		}
	}
	note()
	calls := map[string][]string{"docker": {"docker", "--default"}, "containerd": {"containerd"}}
	for _, words := range calls {
		s.setupOnly(t, words...)
	}
	note()
	// whole checks that each file of an engine is in one of its valid states.
	whole := func(engine string, after any, states map[string][]string) {
		t.Helper()
		for _, p := range sets[engine] {
			if got := s.state(t, p); !slices.Contains(states[engine+p], got) {
				t.Errorf("after %v: %s is none of %q: %s", after, p, states[engine+p], got)
			}
		}
	}
	took := map[string]time.Duration{}
	for engine := range sets {
		began := time.Now()
		s.setupOnly(t, engine, "--remove")
		s.setupOnly(t, calls[engine]...)
		took[engine] = time.Since(began) / 2
	}
	const tries = 24
	for i := range tries {
		engine := []string{"docker", "containerd"}[i%2]
		words := append([]string{shared.Berth, "setup"}, calls[engine]...)
		if i%4 < 2 {
			words = []string{shared.Berth, "setup", engine, "--remove"}
		}
		s.run(t, append([]string{"timeout", "--signal", "KILL", fmt.Sprintf("%.3f", took[engine].Seconds()*(0.4+float64(i)/tries))}, words...)...)
		whole(engine, words, states)
	}
	for engine, words := range calls {
		s.setupOnly(t, words...)
		with, without := map[string][]string{}, map[string][]string{}
		for key, both := range states {
			without[key], with[key] = both[:1], both[1:]
		}
		whole(engine, words, with)
		s.setupOnly(t, engine, "--remove")
		whole(engine, "--remove", without)
	}
	if left := s.do(t, "find", "/etc", "/var/lib/berth/setup", "-name", "*.tmp*"); left != "" {
		t.Errorf("it leaves %s", left)
	}
}

// containerd itself accepts the configuration that setup has written; pods of the runtime class,
// and of the default one.
func TestSetupContainerd(t *testing.T) {
	skipUnlessWanted(t)
	for _, suite := range []string{"forky", "bookworm"} {
		t.Run(suite, func(t *testing.T) {
			s := server{startFor(t, "-setup", suite, "v1")}
			k := &kubelet{&ctrHost{server: s}}
			const config, dropIn = "/etc/containerd/config.toml", "/etc/containerd/conf.d/berth.toml"
			text := criConfig(t, suite, "runc")
			text = text[:strings.Index(text, "[plugins.'io.containerd."+map[string]string{"forky": "cri.v1.runtime", "bookworm": "grpc.v1.cri"}[suite]+"'.containerd.runtimes.berth]")]
			s.write(t, config, "# the admin's own\n"+text)
			before := s.state(t, config, dropIn)
			s.setupOnly(t, "containerd")
			if said := s.do(t, shared.Berth, "setup", "containerd"); said != "containerd: nothing to change\n" {
				t.Errorf("a second time: %s", said)
			}
			k.up(t)
			k.importImage(t)
			asks := map[string]string{"berth.gpus": "2"}
			id := k.startContainer(t, k.pod(t, "berth", "default", asks), object{"annotations": asks})
			if got := k.checkLease(t, id); len(got) != 2 {
				t.Errorf("a container of the class has %v", got)
			}
			plain := k.startContainer(t, k.pod(t, "", "default", asks), object{"annotations": asks})
			if got := k.heldGPUs(t)[plain]; got != nil {
				t.Errorf("a container of the default class has %v", got)
			}
			k.removePods(t)
			s.checkHealthy(t, "containerd", 0)

			s.setupOnly(t, "containerd", "--default")
			k.killDaemon(t, "containerd")
			k.up(t)
			id = k.startContainer(t, k.pod(t, "", "default", asks), object{"annotations": asks})
			if got := k.checkLease(t, id); len(got) != 2 {
				t.Errorf("a container of the default class has %v", got)
			}
			k.removePods(t)

			s.setupOnly(t, "containerd", "--remove")
			if got := s.state(t, config, dropIn); got != before {
				t.Errorf("%s became %s", before, got)
			}
			k.killDaemon(t, "containerd")
			k.up(t)
			id = k.startContainer(t, k.pod(t, "", "default", asks), object{"annotations": asks})
			if got := k.heldGPUs(t)[id]; got != nil {
				t.Errorf("without berth a container has %v", got)
			}
			if got := k.try(t, "RunPodSandbox", object{"config": object{"metadata": object{"name": "x", "uid": "x", "namespace": "x"}}, "runtime_handler": "berth"}); got.code == 0 || !strings.Contains(got.err, "berth") {
				t.Errorf("without berth the class is there: %+v", got)
			}
			k.removePods(t)
			k.killDaemon(t, "containerd")
		})
	}
}

// setupOnly runs berth setup, and none of the commands that it prints.
func (s server) setupOnly(t *testing.T, words ...string) {
	t.Helper()
	s.do(t, append([]string{shared.Berth, "setup"}, words...)...)
}

// podman with setup's configuration: by name, by default, with hooks, and after the removal.
func TestSetupPodman(t *testing.T) {
	skipUnlessWanted(t)
	for _, suite := range []string{"forky", "bookworm"} {
		t.Run(suite, func(t *testing.T) {
			s := server{startFor(t, "-setup", suite, "v2")}
			const limits = "[containers]\npids_limit = 0\ndefault_ulimits = [\"nofile=256:256\", \"nproc=256:256\"]\nnetns = \"none\"\n[engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"none\"\n"
			s.write(t, "/etc/containers/containers.conf", limits)
			s.do(t, "sh", "-c", `tar -C "$0" -cf /tmp/image.tar . && podman import --quiet /tmp/image.tar localhost/test`, image)
			before := s.do(t, "sh", "-c", "find /etc/containers -type f -exec sha256sum {} +; podman info --format '{{.Host.OCIRuntime.Path}}'")
			run := func(gpus int, global, words string) {
				t.Helper()
				all := slices.Concat([]string{"podman"}, strings.Fields(global), strings.Fields("run --rm --interactive --volume /dev:/nodes:dev"), strings.Fields(words), []string{"localhost/test"})
				if own, opened := s.runProbe(t, all...); len(own) != gpus || !slices.Equal(own, opened) && gpus > 0 {
					t.Errorf("%v: it has %v in /dev and opens %v", all, own, opened)
				}
			}
			s.write(t, "/srv/build/Containerfile", "FROM localhost/test\nRUN [\"/probe\", \"/look\"]\n")
			build := func() {
				t.Helper()
				got := s.run(t, "podman", "build", "--no-cache", "--network", "none", "--ulimit", "nofile=256:256", "--ulimit", "nproc=256:256", "/srv/build")
				if got.code != 0 {
					t.Errorf("podman build: exit code %d: %s%s", got.code, got.out, got.err)
				}
			}
			build()
			s.setupOnly(t, "podman")
			build()
			if said := s.do(t, shared.Berth, "setup", "podman"); said != "podman: nothing to change\n" {
				t.Errorf("a second time: %s", said)
			}
			run(0, "", "")
			run(2, "--runtime berth", "--device berth/gpus=2")
			run(1, "--runtime crun", "--device berth/gpus=1")
			run(2, "--runtime runc", "--annotation berth.gpus=2") // by precreate
			run(3, "--runtime berth", "--annotation berth.gpus=3")
			release := s.takeGPUs(t, 7)
			got := s.run(t, "podman", "--runtime", "berth", "run", "--rm", "--device", "berth/gpus=2", "localhost/test", "/probe")
			if got.code != 126 || strings.Count(got.err, "asked") != 1 || !strings.Contains(got.err, "1 of 8 free") || strings.Contains(got.err, "{") {
				t.Errorf("it says %+v", got)
			}
			release()
			s.setupOnly(t, "podman", "--default")
			run(2, "", "--device berth/gpus=2")
			run(0, "", "")
			build()
			s.checkHealthy(t, "podman", 0)
			s.do(t, "podman", "create", "--name", "keeper", "localhost/test", "/wait")
			if said := s.do(t, shared.Berth, "setup", "podman", "--remove"); !strings.Contains(said, "started again without it: keeper\n") {
				t.Errorf("it says %s", said)
			}
			s.do(t, "podman", "rm", "--force", "keeper")
			// Another configuration than the usual one, without anything that berth knows.
			s.do(t, "sh", "-c", "cp /etc/berth/config.toml /srv/kept.toml && cp /etc/berth/config.toml /srv/other.toml && echo unknown = 1 >/etc/berth/config.toml")
			s.do(t, shared.Berth, "--config", "/srv/other.toml", "setup", "podman")
			run(1, "--runtime berth", "--annotation berth.gpus=1")
			run(1, "--runtime runc", "--annotation berth.gpus=1")
			s.do(t, shared.Berth, "--config", "/srv/other.toml", "setup", "podman", "--remove")
			s.do(t, "mv", "/srv/kept.toml", "/etc/berth/config.toml")
			if after := s.do(t, "sh", "-c", "find /etc/containers -type f -exec sha256sum {} +; podman info --format '{{.Host.OCIRuntime.Path}}'"); after != before {
				t.Errorf("%s became %s", before, after)
			}
			run(0, "", "")
		})
	}
}

// The guide's page about setup, on a server that has only docker.
func TestSetupPage(t *testing.T) {
	skipUnlessWanted(t)
	s := bootHost(t, "forky", "v2", "page")
	s.do(t, shared.Berth, "cdi", "remove") // as after the installation
	s.until(t, "docker", "info")
	s.do(t, "sh", "-c", `tar -C "$0" -c . | docker import - test`, image)
	text, err := os.ReadFile("../../docs/setup.md")
	rig.Must(t, err)
	blocks := 0
	for block := range strings.SplitSeq(string(text), "```console setup\n") {
		if blocks++; blocks == 1 {
			continue
		}
		block, _, _ = strings.Cut(block, "```")
		for _, call := range strings.Split("\n"+block, "\n$ ")[1:] {
			command, want, _ := strings.Cut(strings.TrimSuffix(call, "\n"), "\n")
			command, remark, _ := strings.Cut(command, "   # ")
			got := s.run(t, "sh", "-c", command)
			if (got.code != 0) != strings.Contains(remark, "exit code 1") || !like(want, strings.TrimSuffix(got.out+got.err, "\n")) {
				t.Errorf("%s: exit code %d\n%s%s\nand not\n%s", command, got.code, got.out, got.err, want)
			}
		}
	}
	if blocks < 3 {
		t.Errorf("the page has %d blocks", blocks-1)
	}
	if left := s.do(t, "ls", "/etc/cdi"); left != "vendor.json\n" {
		t.Errorf("it leaves the CDI specs %s", left)
	}
}

// like compares what a page shows with what was printed: "…" is any text.
func like(shown, printed string) bool {
	parts := strings.Split(shown, "…")
	for i, part := range parts {
		at := strings.Index(printed, part)
		if at < 0 || i == 0 && at > 0 || i == len(parts)-1 && i > 0 && !strings.HasSuffix(printed, part) {
			return false
		}
		printed = printed[at+len(part):]
	}
	return len(parts) > 1 || printed == ""
}
