package edits

import (
	"os"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// stage is the list of a stage in the spec, nil for an unknown stage.
func (s Stage) list(h *specs.Hooks) *[]specs.Hook {
	switch s {
	case Prestart:
		return &h.Prestart //nolint:staticcheck // Docker's --gpus puts its hook there.
	case CreateRuntime:
		return &h.CreateRuntime
	case CreateContainer:
		return &h.CreateContainer
	case StartContainer:
		return &h.StartContainer
	case Poststart:
		return &h.Poststart
	case Poststop:
		return &h.Poststop
	}
	return nil
}

// DeferProc moves mounts below /proc, which runc refuses in a spec, into hooks that
// make them at createRuntime: "berth-hook mount SOURCE DESTINATION". call is how the
// hook is called: its path, and words that come first.
func (e Edits) DeferProc(call ...string) Edits {
	mounts := e.Mounts
	e.Mounts = nil
	for _, m := range mounts {
		if !strings.HasPrefix(path.Clean(m.Destination), "/proc/") {
			e.Mounts = append(e.Mounts, m)
			continue
		}
		args := slices.Concat([]string{path.Base(call[0])}, call[1:], []string{"mount", m.Source, m.Destination})
		e.Hooks = append(slices.Clip(e.Hooks), Hook{Stage: CreateRuntime, Hook: specs.Hook{Path: call[0], Args: args, Env: []string{}}})
	}
	return e
}

func (e Edits) removeHooks(spec *specs.Spec) {
	if spec.Hooks == nil || len(e.RemoveHooks) == 0 {
		return
	}
	for _, s := range []Stage{Prestart, CreateRuntime, CreateContainer, StartContainer, Poststart, Poststop} {
		list := s.list(spec.Hooks)
		*list = slices.DeleteFunc(slices.Clone(*list), func(h specs.Hook) bool { return slices.Contains(e.RemoveHooks, h.Path) })
	}
}

func (e Edits) addHooks(spec *specs.Spec) {
	for _, h := range e.Hooks {
		if spec.Hooks == nil {
			spec.Hooks = &specs.Hooks{}
		}
		list := h.Stage.list(spec.Hooks)
		if !slices.ContainsFunc(*list, func(o specs.Hook) bool { return reflect.DeepEqual(o, h.Hook) }) {
			*list = append(slices.Clip(*list), h.Hook)
		}
	}
}

func fileMode(bits uint32) *os.FileMode {
	mode := os.FileMode(bits)
	return &mode
}
