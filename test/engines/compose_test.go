package engines

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/test/rig"
)

// composed returns a service of a compose file that waits.
func composed(name, gpus string) string {
	return fmt.Sprintf(`  %s:
    image: cuda
    command: /wait
    runtime: berth
    network_mode: none
    stop_grace_period: 0s
    volumes: ["/dev:/nodes"]
%s`, name, gpus)
}

// documented returns the service of the guide, with what the tests' host needs.
func documented(t *testing.T) string {
	t.Helper()
	_, example, ok := strings.Cut(guide(t), "```yaml compose\nservices:\n")
	example, _, end := strings.Cut(example, "```")
	if !ok || !end {
		t.Fatal("the guide has no compose file")
	}
	return strings.NewReplacer("image: train\n", "image: cuda\n", "command: python train.py\n",
		"command: /wait\n    network_mode: none\n    stop_grace_period: 0s\n    volumes: [\"/dev:/nodes\"]\n").Replace(example)
}

// reserved returns a reservation of GPUs in a compose file.
func reserved(devices string) string {
	return "    deploy: {resources: {reservations: {devices: [{driver: nvidia, capabilities: [gpu], " + devices + "}]}}}\n"
}

// Services of docker compose have GPUs of their own: a count gets free ones, names get the named
// devices, and a restart takes what is free then.
func TestCompose(t *testing.T) {
	skipUnlessWanted(t)
	h := start(t, "forky", "v2")
	h.once("docker", func() { docker().prepare(t, h) })
	ids := h.uuids(t)
	file := filepath.Join(h.dir, "compose.yaml")
	h.write(t, file, "services:\n"+
		composed("exact", reserved(`device_ids: ["3"]`))+
		composed("uuid", reserved(`device_ids: ["`+ids[0]+`"]`))+
		composed("one", reserved("count: 1"))+
		composed("model", reserved(`device_ids: ["h100:1"]`))+
		composed("annotated", "    annotations: {berth.gpus: \"1\"}\n")+
		composed("cdi", "    devices: [\"berth/gpus=1\"]\n")+
		documented(t)+
		composed("none", "    environment: {NVIDIA_VISIBLE_DEVICES: all}\n"))
	compose := func(words ...string) []string {
		return append([]string{"docker", "compose", "--project-name", "habits", "--file", file}, words...)
	}
	sees := func(service string) []string {
		own, all := h.opened(t, compose("exec", "--no-TTY", service, "/probe")...)
		if !slices.Equal(own, all) {
			t.Errorf("%s has %v in /dev and opens %v", service, own, all)
		}
		return own
	}
	t.Cleanup(func() { h.do(t, compose("down", "--timeout", "0")...) })
	for _, service := range []string{"exact", "uuid", "one", "model", "annotated", "cdi", "train", "none"} {
		h.do(t, compose("up", "--detach", service)...) // in this order, because named devices have to be free
	}
	if diff := cmp.Diff([][]string{{"nvidia3"}, {"nvidia0"}, nil}, [][]string{sees("exact"), sees("uuid"), sees("none")}); diff != "" {
		t.Errorf("exact, uuid, none (-want +got):\n%s", diff)
	}
	seen := slices.Concat(sees("exact"), sees("uuid"))
	for service, want := range map[string]int{"one": 1, "model": 1, "annotated": 1, "cdi": 1, "train": 2} {
		got := sees(service)
		if len(got) != want {
			t.Errorf("%s opens %v, want %d", service, got, want)
		}
		seen = append(seen, got...)
	}
	if slices.Sort(seen); len(slices.Compact(slices.Clone(seen))) != len(seen) {
		t.Errorf("a GPU is in two services: %v", seen)
	}
	// Another process takes the GPUs that a service has released: the service restarts with others.
	before := sees("one")
	h.do(t, compose("stop", "--timeout", "0", "one")...)
	taker := place{h, dockerRun("--gpus", `"device=`+strings.Join(uuidsOf(ids, before), ",")+`"`, "test"), "berth"}.start(t, containerOptions{})
	h.do(t, compose("stop", "--timeout", "0", "model")...)
	h.do(t, compose("start", "one")...)
	if after := sees("one"); len(after) != 1 || slices.Equal(before, after) || slices.ContainsFunc(after, func(g string) bool { return slices.Contains(before, g) }) {
		t.Errorf("it had %v, others took them, and it came back with %v", before, after)
	}
	taker.end()
	h.do(t, compose("down", "--timeout", "0")...)
	h.waitUntilReleased(t)
}

// uuidsOf returns the UUIDs of GPUs by their nodes' names, as nvidia3; on this server indexes are
// minors.
func uuidsOf(ids, names []string) (all []string) {
	for i, id := range ids {
		if slices.Contains(names, fmt.Sprintf("nvidia%d", i)) {
			all = append(all, id)
		}
	}
	return all
}

// A process of docker exec can open the devices of its container, and no others, whatever its user
// is.
func TestExec(t *testing.T) {
	skipUnlessWanted(t)
	h := start(t, "forky", "v2")
	h.once("docker", func() { docker().prepare(t, h) })
	id := strings.TrimSpace(h.do(t, "docker", "run", "--detach", "--rm", "--runtime", "berth", "--network", "none", "--gpus", "2", "--volume", "/dev:/nodes", "test", "/wait"))
	var names []string
	for _, l := range h.live(t) {
		for _, d := range l.Devices {
			names = append(names, fmt.Sprintf("nvidia%d", slices.Index(h.uuids(t), d.UUID)))
		}
	}
	for _, words := range [][]string{nil, {"--user", "1000:1000"}, {"--env", "NVIDIA_VISIBLE_DEVICES=all"}} {
		own, all := h.opened(t, append(append([]string{"docker", "exec", "--interactive"}, words...), id, "/probe")...)
		if !slices.Equal(own, all) || !slices.Equal(own, names) || len(own) != 2 {
			t.Errorf("exec %v has %v in /dev, opens %v, and the lease has %v", words, own, all, names)
		}
	}
	if got := h.run(t, "docker", "exec", "--privileged", id, "/probe"); got.code == 0 || !strings.Contains(got.out+got.err, "with CAP_SYS_ADMIN the process could open devices beyond lease") {
		t.Errorf("exec --privileged: %+v", got)
	}
	h.do(t, "docker", "rm", "--force", id)
	h.waitUntilReleased(t)
}

// opened runs the probe by a command that starts it in a container, and returns the GPUs that it
// can open by the container's nodes and by the host's.
func (h *host) opened(t *testing.T, words ...string) (own, all []string) {
	t.Helper()
	cmd := h.command(words...)
	var commands strings.Builder
	for i := range 8 {
		fmt.Fprintf(&commands, "open /dev/nvidia%d\nopen /nodes/nvidia%d\n", i, i)
	}
	cmd.Stdin = strings.NewReader(commands.String())
	out, err := cmd.Output()
	rig.Must(t, err)
	answers := slices.DeleteFunc(strings.Split(strings.TrimSpace(string(out)), "\n"), func(line string) bool { return line == "." })
	if len(answers) != 16 {
		t.Fatalf("%v: answers %q", words, answers)
	}
	for i := range 8 {
		name := fmt.Sprintf("nvidia%d", i)
		if answers[2*i] == "ENXIO ENXIO ENXIO" {
			own = append(own, name)
		}
		if answers[2*i+1] == "ENXIO ENXIO ENXIO" {
			all = append(all, name)
		}
	}
	return own, all
}
