package entry

import (
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// TestZeroGPUs: Docker before 27.3 writes no variable for --gpus 0. The image's variable isn't taken
// for it where they can be told apart.
func TestZeroGPUs(t *testing.T) {
	const all, two, void = "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=0,1", "NVIDIA_VISIBLE_DEVICES=void"
	const every, compute = "NVIDIA_DRIVER_CAPABILITIES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"
	for _, tt := range []struct {
		name  string
		newer bool
		flags int
		env   []string
		want  string
		err   string
	}{
		{"an image's, 0", false, 1, []string{"PATH=/bin", all, every}, "", ""},
		{"an image's, 0, and its own variables after it", false, 1, []string{all, "A=b"}, "", ""},
		{"an image's, 0, with Docker's capabilities", false, 1, []string{all, every, compute}, "", ""},
		{"an image's, 0, as Docker writes it", false, 1, []string{"PATH=/bin", all}, "all", ""},
		{"an image's, 2", false, 1, []string{all, every, two}, "2", ""},
		{"an image's, 2 with capabilities", false, 1, []string{all, every, two, compute}, "2", ""},
		{"all", false, 1, []string{"PATH=/bin", all}, "all", ""},
		{"0", false, 1, []string{"PATH=/bin"}, "", ""},
		{"no environment", false, 1, nil, "", ""},
		{"0 and 2", false, 2, []string{all, every, two}, "2", ""},
		{"2 and 2", false, 2, []string{all, every, two, compute, two}, "2", ""},
		{"2 and 1", false, 2, []string{two, "NVIDIA_VISIBLE_DEVICES=0"}, "", "contradicting requests"},
		{"void", true, 1, []string{all, every, void}, "", ""},
		{"CDI's variables after it", true, 1, []string{two, "PORT=0"}, "2", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, policy := range []Visible{Ignore, Count, Honour, Refuse} {
				spec := withFlag(tt.env...)
				h := dockersHook()
				if tt.newer {
					h.Env = append(h.Env, "OTEL_SERVICE_NAME=dockerd")
				}
				spec.Hooks.Prestart = nil //nolint:staticcheck // Docker still writes it.
				for range tt.flags {
					spec.Hooks.Prestart = append(spec.Hooks.Prestart, h) //nolint:staticcheck // Docker still writes it.
				}
				asks(t, spec, Trust{VisibleDevices: policy}, nil, tt.want, tt.err)
			}
		})
	}
}

// An old Docker's words are the end of an environment, and no more flags than there are.
func FuzzWritten(f *testing.F) {
	f.Add("A=b", "NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=compute", 1)
	f.Add("NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_DRIVER_CAPABILITIES=all", "", 2)
	f.Fuzz(func(t *testing.T, a, b, c string, flags int) {
		env := []string{a, b, c}
		end := dockerVariables(env, flags)
		found := 0
		for i, entry := range end {
			if entry != env[len(env)-len(end)+i] {
				t.Errorf("%q isn't the end of %q", end, env)
			}
			if _, ok := lookUpVariable(&specs.Spec{Process: &specs.Process{Env: []string{entry}}}, VisibleDevices); ok {
				found++
			}
		}
		if found > max(flags, 0) {
			t.Errorf("%d requests of %d flags: %q", found, flags, end)
		}
	})
}
