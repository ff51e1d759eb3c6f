package tasks

import (
	"slices"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/rig"
)

// TestInspectContainer: berth inspect has all settings of a container, those of flags and of the image.
func TestInspectContainer(t *testing.T) {
	s := startServer(t, "dgx-h100", "v2", "crun")
	s.run(t, "--name", "made", "-e", "A=b", "-u", "5:6", "-w", "/tmp", "-v", "/usr:/bound:ro", "--cap-drop", "ALL", "--cap-add", "CHOWN",
		"--ulimit", "nofile=77", rig.ImagePath(t, "busybox"), "sh", "-c", announceReady("exec sleep 1000"))
	var all []struct {
		Task struct {
			Container struct {
				Args, Env    []string
				Workdir      string
				User         string
				Mounts       []struct{ Source, Destination string }
				Capabilities []string
				Ulimits      []struct{ Soft uint64 }
			}
		}
	}
	rig.Decode(t, s.Do(t, s.Berth, "inspect", "made"), &all)
	c := all[0].Task.Container
	bound := slices.ContainsFunc(c.Mounts, func(m struct{ Source, Destination string }) bool {
		return m.Source == "/usr" && m.Destination == "/bound"
	})
	limited := slices.ContainsFunc(c.Ulimits, func(l struct{ Soft uint64 }) bool { return l.Soft == 77 })
	if c.Args[0] != "sh" || !slices.Contains(c.Env, "A=b") || c.User != "5:6" || c.Workdir != "/tmp" || !bound || !limited ||
		strings.Join(c.Capabilities, " ") != "CAP_CHOWN" {
		t.Errorf("%+v", c)
	}
}
