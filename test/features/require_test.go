package features

import "testing"

// An image whose requirements aren't met doesn't start, and the error names both the node's
// properties and the requirement.
func TestRequirements(t *testing.T) {
	for _, tt := range []struct {
		name, profile string
		env           []string
		want          []string
	}{
		{"CUDA", "dgx-h100", []string{"NVIDIA_REQUIRE_CUDA=cuda>=13.0"}, []string{"NVIDIA_REQUIRE_CUDA=cuda>=13.0", "cuda 12.4", "driver 550.163.01"}},
		{"driver", "dgx-h100", []string{"NVIDIA_REQUIRE_DRIVER=driver>=560"}, []string{"driver>=560", "driver 550.163.01"}},
		{"one of two", "dgx-h100", []string{"NVIDIA_REQUIRE_CUDA=cuda>=12.0", "NVIDIA_REQUIRE_ARCH=arch>=10.0"}, []string{"arch>=10.0", "arch 9.0"}},
		{"arch of a slice", "dgx-a100-mig", []string{"NVIDIA_REQUIRE_ARCH=arch>=9.0"}, []string{"arch>=9.0", "arch 8.0"}},
		{"what can't be read", "dgx-h100", []string{"NVIDIA_REQUIRE_CUDA=cuda>=twelve"}, []string{"NVIDIA_REQUIRE_CUDA", `"twelve" isn't a version`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			all := oneOfEach()
			if tt.name == "CUDA" {
				all = allKinds()
			}
			request := "1"
			if tt.profile == "dgx-a100-mig" {
				request = "1g.10gb"
			}
			eachKind(t, tt.profile, all, func(t *testing.T, d entryPoint) {
				d.wantRefused(t, task{request: request, env: tt.env}, tt.want...)
			})
		})
	}
}

// Requirements don't prevent a start if they are met, if they are turned off, or if the container
// has no GPU.
func TestRequirementsThatAreMet(t *testing.T) {
	const tooMuch = "NVIDIA_REQUIRE_CUDA=cuda>=13.0"
	for _, tt := range []struct {
		name, request string
		env           []string
	}{
		{"met", "1", []string{"NVIDIA_REQUIRE_CUDA=cuda>=13.0 cuda>=12.4,driver>=550,driver<551"}},
		{"turned off", "1", []string{tooMuch, "NVIDIA_DISABLE_REQUIRE=1"}},
		{"turned off by a word", "1", []string{"NVIDIA_DISABLE_REQUIRE=true", tooMuch}},
		{"no GPU", "", []string{tooMuch}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			eachKind(t, "dgx-h100", oneOfEach(), func(t *testing.T, d entryPoint) {
				c := d.run(t, task{request: tt.request, env: tt.env})
				c.end()
			})
		})
	}
}
