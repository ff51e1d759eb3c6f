package main

import (
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// inspectedContainer is what a task's container was described with: the image's wishes,
// the command line's, and berth's.
type inspectedContainer struct {
	Args         []string            `json:"args"`
	Env          []string            `json:"env"`
	Dir          string              `json:"workdir"`
	User         string              `json:"user"` // numbers
	Groups       []uint32            `json:"groups,omitempty"`
	Hostname     string              `json:"hostname,omitempty"`
	ReadOnly     bool                `json:"read_only"`
	Mounts       []specs.Mount       `json:"mounts"`
	Capabilities []string            `json:"capabilities"`
	Ulimits      []specs.POSIXRlimit `json:"ulimits,omitempty"`
	Resources    *inspectedResources `json:"resources,omitempty"`
}

// inspectedResources are limits of the container's cgroup. Device rules are left out:
// what was injected says what opens.
type inspectedResources struct {
	Memory *specs.LinuxMemory `json:"memory,omitempty"`
	CPU    *specs.LinuxCPU    `json:"cpu,omitempty"`
	PIDs   *specs.LinuxPids   `json:"pids,omitempty"`
}

// containerOf reads a spec that berth has written, or had written.
func containerOf(s *specs.Spec) *inspectedContainer {
	if s.Process == nil {
		return nil
	}
	p := s.Process
	c := &inspectedContainer{
		Args: p.Args, Env: p.Env, Dir: p.Cwd, User: fmt.Sprintf("%d:%d", p.User.UID, p.User.GID), Groups: p.User.AdditionalGids,
		Hostname: s.Hostname, ReadOnly: s.Root != nil && s.Root.Readonly, Mounts: s.Mounts, Ulimits: p.Rlimits,
	}
	if p.Capabilities != nil {
		c.Capabilities = p.Capabilities.Bounding
	}
	if s.Linux != nil && s.Linux.Resources != nil {
		r := s.Linux.Resources
		c.Resources = &inspectedResources{Memory: r.Memory, CPU: r.CPU, PIDs: r.Pids}
	}
	return c
}
