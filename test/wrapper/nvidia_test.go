package wrapper

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// writeTool makes a program with a name of NVIDIA's that records its calls.
func (w *world) writeTool(name string) (path, ran string) {
	w.t.Helper()
	dir := filepath.Join(w.dir, "tools")
	w.must(os.MkdirAll(dir, 0o755))
	path, ran = filepath.Join(dir, name), filepath.Join(dir, name+".ran")
	w.must(os.WriteFile(path, []byte("#!/bin/sh\ncat >/dev/null\necho ran >'"+ran+"'\n"), 0o755))
	return path, ran
}

// Hooks that Docker's --gpus and NVIDIA's CDI specs leave in a bundle are requests, and their
// programs aren't run. Without berth they are.
func TestHabits(t *testing.T) {
	docker := func(value string) func(*world, *specs.Spec) string {
		return func(w *world, s *specs.Spec) string {
			path, ran := w.writeTool("nvidia-container-runtime-hook")
			//nolint:staticcheck // Docker still writes prestart hooks.
			s.Hooks = &specs.Hooks{Prestart: []specs.Hook{{
				Path: path, Args: []string{"nvidia-container-runtime-hook", "prestart"}, Env: []string{"PATH=" + filepath.Dir(path)},
			}}}
			s.Process.Env = append(s.Process.Env, "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES="+value)
			return ran
		}
	}
	cdi := func(gpus ...int) func(*world, *specs.Spec) string {
		return func(w *world, s *specs.Spec) string {
			path, ran := w.writeTool("nvidia-cdi-hook")
			s.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: path, Args: []string{"nvidia-cdi-hook", "update-ldcache"}}}}
			for _, i := range gpus {
				name := fmt.Sprint("/dev/nvidia", i)
				var st unix.Stat_t
				w.must(unix.Stat(name, &st))
				major, minor := int64(unix.Major(st.Rdev)), int64(unix.Minor(st.Rdev))
				s.Linux.Devices = append(s.Linux.Devices, specs.LinuxDevice{Path: name, Type: "c", Major: major, Minor: minor})
				s.Linux.Resources.Devices = append(s.Linux.Resources.Devices, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Minor: &minor, Access: "rwm"})
			}
			return ran
		}
	}
	for _, runtime := range []string{"runc", "crun"} {
		for _, tt := range []struct {
			name string
			make func(*world, *specs.Spec) string
			gpus int
		}{
			{"flag for two", docker("0,1"), 2},
			{"flag for none", docker("void"), 0},
			{"flag for a model", docker("h100:3"), 3},
			{"CDI", cdi(2, 5), 2},
		} {
			t.Run(runtime+"/"+tt.name, func(t *testing.T) {
				b := programs(t)
				w := newWorld(t, runtime, "habit-"+runtime, "sh", "-c", "for n in 0 1 2 3 4 5 6 7; do cat /dev/nvidia$n 2>&1; done")
				w.withRequest("1")
				var ran string
				w.edit(func(s *specs.Spec) {
					s.Annotations = nil
					ran = tt.make(w, s)
				})
				w.run(w.runtime, "", w.global("run", w.id)...)
				if err := os.Remove(ran); err != nil {
					t.Errorf("without berth it would not have been seen: %v", err)
				}
				got := w.run(b.wrapper, "", w.global("run", w.id)...)
				if n := strings.Count(got.Out, "No such device or address"); got.Code != 1 || n != tt.gpus {
					t.Errorf("it opens %d GPUs, want %d: %+v", n, tt.gpus, got)
				}
				if _, err := os.Stat(ran); err == nil {
					t.Error("NVIDIA's program was run")
				}
			})
		}
	}
}
