package wrapper

import (
	"os"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// TestBrokenConfiguration: with an error in the configuration, containers without GPUs start
// and the event log has the error; a container that could have to do with an accelerator is
// refused with the error in one line.
func TestBrokenConfiguration(t *testing.T) {
	b := programs(t)
	for _, broken := range []struct{ name, text, want string }{
		{"unknown key", "frobnicate = true\n", `unknown key "frobnicate"`},
		{"malformed", "[policy\n", "line N, column"},
		{"invalid value", "[policy]\nnics = 'mine'\n", "nics"},
	} {
		for _, container := range []struct {
			name   string
			change func(*specs.Spec)
			starts bool
		}{
			{"plain", func(*specs.Spec) {}, true},
			{"with a request", func(s *specs.Spec) { s.Annotations = map[string]string{"berth.gpus": "1"} }, false},
			{"all devices allowed", func(s *specs.Spec) {
				s.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
			}, false},
			{"CAP_SYS_ADMIN", func(s *specs.Spec) {
				c := s.Process.Capabilities
				c.Bounding, c.Effective, c.Permitted = append(c.Bounding, "CAP_SYS_ADMIN"), append(c.Effective, "CAP_SYS_ADMIN"), append(c.Permitted, "CAP_SYS_ADMIN")
			}, false},
			{"NVIDIA's variable", func(s *specs.Spec) { s.Process.Env = append(s.Process.Env, "NVIDIA_VISIBLE_DEVICES=all") }, false},
		} {
			t.Run(broken.name+" "+container.name, func(t *testing.T) {
				id := "broken-" + strings.NewReplacer(" ", "-", "'", "").Replace(broken.name+"-"+container.name)
				w := newWorld(t, "runc", id, "echo", "it runs")
				w.config = configure(t, w.runtime, broken.text)
				w.edit(container.change)
				got := w.run(b.wrapper, "", w.global("run", w.id)...)
				if container.starts {
					log, err := os.ReadFile("/var/lib/berth/events.log")
					w.must(err)
					if got.Code != 0 || got.Out != "it runs\n" || !strings.Contains(string(log), `"unconfigured"`) || !strings.Contains(string(log), id) {
						t.Errorf("it does not start: %+v; events: %s", got, log)
					}
					return
				}
				if got.Code != 1 || got.Out != "" || !strings.Contains(got.Err, broken.want) || strings.Count(got.Log, "\n") != 1 {
					t.Errorf("got %+v", got)
				}
			})
		}
	}
}
