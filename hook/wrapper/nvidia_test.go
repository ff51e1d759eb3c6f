package wrapper

import (
	"strings"
	"testing"
)

// habit is a bundle with Docker's entry for --gpus, and the variable that goes with it.
func habit(variable string) string {
	return `{"ociVersion":"1.0.2", "root":{"path":"rootfs"},"process":{"env":["NVIDIA_VISIBLE_DEVICES=all","NVIDIA_VISIBLE_DEVICES=` + variable + `"]},` +
		`"annotations":{"a":"b"},"linux":{"cgroupsPath":"/engine/c1","resources":{}},"hooks":{"prestart":[{"path":"/opt/nvidia-container-runtime-hook",` +
		`"args":["nvidia-container-runtime-hook","prestart"],"env":["PATH=/opt"]},{"path":"/bin/other"}]}}`
}

// CDI devices of NVIDIA's: one GPU, what goes with it, and a mount of the user's own.
const injected = `{"ociVersion":"1.0.2", "root":{"path":"rootfs"},"process":{"env":["NVIDIA_VISIBLE_DEVICES=void"]},"annotations":{"a":"b"},
	"mounts":[{"destination":"/usr/lib/libcuda.so.570.1","source":"/usr/lib/libcuda.so.570.1","options":["ro","nosuid","nodev","bind"]},{"destination":"/data","source":"/data","options":["ro","nosuid","nodev","bind"]}],
	"hooks":{"createContainer":[{"path":"/usr/bin/nvidia-cdi-hook","args":["nvidia-cdi-hook","update-ldcache"]}]},
	"linux":{"cgroupsPath":"/engine/c1","devices":[{"path":"/dev/nvidia3","type":"c","major":195,"minor":3},{"path":"/dev/nvidiactl","type":"c","major":195,"minor":255}],
	"resources":{"devices":[{"allow":false,"access":"rwm"},{"allow":true,"type":"c","major":195,"minor":3,"access":"rwm"}]}}}`

// TestCreateWithNVIDIAHooks: the hooks of Docker's --gpus and of NVIDIA's tools are read as requests,
// and removed.
func TestCreateWithNVIDIAHooks(t *testing.T) {
	const leased = "prepare 00000000000a rootfs; tell prepared 00000000000a "
	const dockers = "1 hook of /opt/nvidia-container-runtime-hook, which berth replaces"
	cdi := "1 hook of /usr/bin/nvidia-cdi-hook, which berth replaces; 1 mount of driver files by NVIDIA's CDI spec"
	podmans := strings.NewReplacer(`"a":"b"`, `"io.container.manager":"libpod"`, "/engine/c1", "/libpod_parent/libpod-c1").Replace(habit("0,1"))
	for _, tt := range []struct {
		name, config string
		concerned    bool
		calls        string
	}{
		{"--gpus 2", habit("0,1"), false, "acquire 2 for c1; " + leased + dockers + "; a note"},
		{"--gpus all", habit("all"), false, "acquire all for c1; " + leased + dockers + "; a note"},
		{"--gpus device=3", habit("3"), false, "acquire device=3 for c1; " + leased + dockers + "; a note"},
		{"--gpus 0", habit("void"), false, "tell guarded  " + dockers},
		{"--gpus 0, and something to be walled", habit("void"), true, "guard rootfs; tell guarded  " + dockers + "; a note"},
		{"a hook that podman has put there", podmans, false, "tell guarded  " + dockers},
		{"CDI", injected, true, "acquire device=gpu-3 for c1; " + leased + cdi + "; a note"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := world(t, tt.config)
			s.Concerned = tt.concerned
			r := s.run(t, createLine)
			want(t, "calls", strings.ReplaceAll(s.calls(t), "device=GPU", "device=gpu"), tt.calls+"; runtime "+createLine)
			checkSamePID(t, s, r)
			seen := s.get(t, "seen.json")
			if strings.Contains(seen, "nvidia-container-runtime-hook") || strings.Contains(seen, "nvidia-cdi-hook") || strings.Contains(seen, "libcuda") {
				t.Errorf("it is still there: %s", seen)
			}
			if strings.Contains(tt.config, "/bin/other") != strings.Contains(seen, "/bin/other") || strings.Contains(tt.config, "/data") != strings.Contains(seen, "/data") {
				t.Errorf("another's went too: %s", seen)
			}
			want(t, "kept", s.get(t, "bundle/config.json.berth"), tt.config)
		})
	}
}

// TestCreateExemptWithNVIDIAHooks: an exempt container without a request keeps the additions of
// NVIDIA's tools, and its bundle stays unchanged. --gpus is a request nevertheless.
func TestCreateExemptWithNVIDIAHooks(t *testing.T) {
	exempt := func(config string) string { return strings.Replace(config, `"a":"b"`, `"berth.exempt":"secret"`, 1) }
	s := world(t, exempt(injected))
	s.run(t, createLine)
	want(t, "calls", s.calls(t), "runtime "+createLine)
	want(t, "seen", s.get(t, "seen.json"), exempt(injected))

	s = world(t, exempt(habit("0")))
	s.run(t, createLine)
	if got := s.calls(t); !strings.HasPrefix(got, "acquire 1 for c1; ") || strings.Contains(s.get(t, "seen.json"), "nvidia-container-runtime-hook") {
		t.Errorf("%s: %s", got, s.get(t, "seen.json"))
	}
}

// TestCreateWithNVIDIAHooksFails: additions that can't be read fail the create with one line, and no
// lease is taken.
func TestCreateWithNVIDIAHooksFails(t *testing.T) {
	for value, says := range map[string]string{"2,2": "--gpus: request", "h100:x": "--gpus: request"} {
		s := world(t, habit(value))
		r := s.run(t, createLine)
		want(t, "calls", s.calls(t), "")
		if r.code != 1 || !strings.Contains(r.stderr, says) || strings.Count(r.stderr, "\n") != 1 || s.has("bundle/config.json.berth") {
			t.Errorf("%s: %+v", value, r)
		}
	}
}
