package edits

import (
	"cmp"
	"maps"
	"os"
	"path"
	"reflect"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// hookList returns the spec's list of hooks of the stage, nil for an unknown stage.
func (s Stage) hookList(h *specs.Hooks) *[]specs.Hook {
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

// DeferNet moves network devices into a hook that brings them in at createRuntime, before other
// hooks of the edits at that stage: "berth-hook netdev HOST NAME...". One hook moves all of them or
// none. call is the hook's path and the arguments before "netdev".
//
// The spec's own field for them, linux.netDevices, is never written. Runtimes older than the field
// ignore it silently, and a runtime doesn't tell whether it knows the field. With a runtime that
// does, the field and the hook would both look for the device.
//
// RDMA devices, for which the specification has no field, get a hook as well.
func (e Edits) DeferNet(call ...string) Edits {
	if words := e.rdmaArguments(); len(words) > 0 {
		e.prependHook("moves RDMA devices into the container's network", ownHook(call, append([]string{"rdma"}, words...)...))
		e.RDMALinks, e.RDMAInterfaces = nil, nil
	}
	if len(e.NetDevices) == 0 {
		return e
	}
	words := []string{"netdev"}
	for _, host := range slices.Sorted(maps.Keys(e.NetDevices)) {
		words = append(words, host, cmp.Or(e.NetDevices[host], host))
	}
	e.NetDevices = nil
	e.prependHook("moves network devices into the container", ownHook(call, words...))
	return e
}

func (e *Edits) prependHook(why string, h Hook) {
	e.Hooks = slices.Concat([]Hook{h}, e.Hooks)
	e.Reasons = append(slices.Clip(e.Reasons), Reason{"hook", h.Name(), why})
}

// rdmaArguments are the arguments of the hook that moves RDMA devices: "mlx5_0 net:eth1".
func (e Edits) rdmaArguments() []string {
	words := slices.Clone(e.RDMALinks)
	for _, name := range e.RDMAInterfaces {
		words = append(words, "net:"+name)
	}
	return words
}

// ownHook returns a hook of berth's at createRuntime.
func ownHook(call []string, words ...string) Hook {
	args := slices.Concat([]string{path.Base(call[0])}, call[1:], words)
	return Hook{Stage: CreateRuntime, Hook: specs.Hook{Path: call[0], Args: args, Env: []string{}}}
}

func (e Edits) removeHooks(spec *specs.Spec) {
	if spec.Hooks == nil || len(e.RemoveHooks) == 0 {
		return
	}
	for _, s := range []Stage{Prestart, CreateRuntime, CreateContainer, StartContainer, Poststart, Poststop} {
		list := s.hookList(spec.Hooks)
		*list = slices.DeleteFunc(slices.Clone(*list), func(h specs.Hook) bool { return slices.Contains(e.RemoveHooks, h.Path) })
	}
}

func (e Edits) addHooks(spec *specs.Spec) {
	for _, h := range e.Hooks {
		if spec.Hooks == nil {
			spec.Hooks = &specs.Hooks{}
		}
		list := h.Stage.hookList(spec.Hooks)
		if !slices.ContainsFunc(*list, func(o specs.Hook) bool { return reflect.DeepEqual(o, h.Hook) }) {
			*list = append(slices.Clip(*list), h.Hook)
		}
	}
}

func fileMode(bits uint32) *os.FileMode {
	mode := os.FileMode(bits)
	return &mode
}
