package task

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/internal/runtimestate"
	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// inspectedContainer is the part of a container's spec that berth inspect shows.
type inspectedContainer struct {
	Args         []string            `json:"args"`
	Env          []string            `json:"env"`
	Dir          string              `json:"workdir"`
	User         string              `json:"user"` // numbers
	Groups       []uint32            `json:"groups,omitempty"`
	Hostname     string              `json:"hostname,omitempty"`
	Network      string              `json:"network"` // "host", "none" or "private"
	ReadOnly     bool                `json:"read_only"`
	Mounts       []specs.Mount       `json:"mounts"`
	Capabilities []string            `json:"capabilities"`
	Ulimits      []specs.POSIXRlimit `json:"ulimits,omitempty"`
	Resources    *inspectedResources `json:"resources,omitempty"`
}

// dockerHostConfig has mounts, which the user has asked for, as docker's Binds.
func (c inspectedContainer) dockerHostConfig(r tasks.Record, mounts []specs.Mount) map[string]any {
	binds := []string{}
	for _, m := range mounts {
		bind := m.Source + ":" + m.Destination
		if slices.Contains(m.Options, "ro") {
			bind += ":ro"
		}
		binds = append(binds, bind)
	}
	var memory, pids, period, quota, nano int64
	if res := c.Resources; res != nil {
		if res.Memory != nil {
			memory = dereference(res.Memory.Limit)
		}
		if res.PIDs != nil {
			pids = dereference(res.PIDs.Limit)
		}
		if res.CPU != nil {
			period, quota = int64(dereference(res.CPU.Period)), dereference(res.CPU.Quota)
			if period > 0 && quota > 0 {
				nano = quota * 1e9 / period
			}
		}
	}
	return map[string]any{
		"NetworkMode": c.Network, "AutoRemove": r.Remove, "ReadonlyRootfs": c.ReadOnly,
		"Memory": memory, "PidsLimit": pids, "CpuPeriod": period, "CpuQuota": quota,
		"NanoCpus": nano, "Binds": binds, "PortBindings": map[string]any{},
		"RestartPolicy": map[string]any{"Name": cmp.Or(r.Restart.Policy, "no"), "MaximumRetryCount": r.Restart.Max},
	}
}

// inspectedResources are limits of the container's cgroup. Device rules are left out, because
// they are among the injections.
type inspectedResources struct {
	Memory *specs.LinuxMemory `json:"memory,omitempty"`
	CPU    *specs.LinuxCPU    `json:"cpu,omitempty"`
	PIDs   *specs.LinuxPids   `json:"pids,omitempty"`
}

// newInspectedContainer returns the shown part of a spec.
func newInspectedContainer(s *specs.Spec) *inspectedContainer {
	if s.Process == nil {
		return nil
	}
	p := s.Process
	c := &inspectedContainer{
		Args: p.Args, Env: p.Env, Dir: p.Cwd, User: fmt.Sprintf("%d:%d", p.User.UID, p.User.GID), Groups: p.User.AdditionalGids,
		Hostname: s.Hostname, Network: networkOf(s), ReadOnly: s.Root != nil && s.Root.Readonly, Mounts: s.Mounts, Ulimits: p.Rlimits,
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

func readSpec(path string) (*specs.Spec, error) {
	data, err := smallfile.Read(path, runtimestate.MaxSpec)
	if err != nil {
		return nil, err
	}
	var spec specs.Spec
	if err := json.Unmarshal(data, &spec); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return &spec, nil
}

// hostMounts returns the bind mounts that the user has asked for, without the task's own files
// and those that come with devices.
func hostMounts(k backend.Tasks, mounts []specs.Mount) []specs.Mount {
	return slices.DeleteFunc(slices.Clone(mounts), func(m specs.Mount) bool {
		return m.Type != "bind" || strings.HasPrefix(m.Source, filepath.Clean(k.Data)+"/")
	})
}

// networkOf returns the kind of a container's network in the words of --network.
func networkOf(spec *specs.Spec) string {
	if spec.Linux == nil {
		return ""
	}
	for _, n := range spec.Linux.Namespaces {
		switch {
		case n.Type != specs.NetworkNamespace:
		case n.Path == "":
			return "none"
		default:
			return "private"
		}
	}
	return "host"
}
