// Package edits has the value type that describes changes of an OCI runtime spec. Package cdi
// produces edits that add (devices, driver files, environment), package isolation produces edits
// that remove (foreign nodes, rules, capabilities). berth.Compose merges them. What a spec loses is
// listed as [Removal] values, with a reason each. What is added has its reason in the edits, as a
// [Reason].
//
// Edits are plain data: producing, merging and applying them touches nothing
// outside the process. Applying the same edits twice is the same as once.
//
// What it does not do: it decides nothing (which devices, which policy), and it
// doesn't read or write config.json.
package edits

import (
	"cmp"
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Any stands for every major or every minor in a [Rule].
const Any int64 = -1

// Edits says what changes in a spec. The zero value changes nothing. Lists are ordered sets:
// duplicates are dropped.
type Edits struct {
	// Nodes are device nodes to make in the container, with a rule for each that
	// allows its Access. A node of the same path is replaced.
	Nodes []Node
	// RemoveNodes are the container paths of nodes not to make.
	RemoveNodes []string
	// Rules, unless nil, replaces the spec's device rules. The rules of Nodes
	// follow them.
	Rules []Rule

	// Mounts are put after those of the spec; an older mount at the same
	// destination is removed.
	Mounts []specs.Mount
	// RemoveMounts are mounts to leave out.
	RemoveMounts []MountRef

	// Env sets variables of the process, UnsetEnv removes them.
	Env      map[string]string
	UnsetEnv []string

	// DropCapabilities leave all five sets: "CAP_MKNOD".
	DropCapabilities []string
	// MaskedPaths are made unreadable in the container.
	MaskedPaths []string
	// ReadonlyPaths are paths that the container can't write to.
	ReadonlyPaths []string
	// Annotations are set on the container.
	Annotations map[string]string
	// GIDs are supplementary groups of the process.
	GIDs []uint32
	// Rlimits replace limits of the same type.
	Rlimits []specs.POSIXRlimit
	// Calls are system calls that the spec's filter lets through, with any arguments, even if a rule
	// of the filter refuses them: see [Edits.Apply].
	Calls []string
	// Shm is the size of /dev/shm in the words of tmpfs ("50%", "1073741824"). It replaces only the
	// engines' default of 64 MiB.
	Shm string
	// NetDevices are network interfaces of the host to move into the container, by
	// their names there; the value is the name inside, "" for the same. A spec
	// can't bring them: DeferNet makes a hook of them.
	NetDevices map[string]string
	// RDMALinks are RDMA devices of the host to move into the container's network
	// namespace, where the kernel has each in one alone. They come as NetDevices do.
	RDMALinks []string
	// RDMAInterfaces are network interfaces of the host that RDMA devices have their
	// addresses from, to move into that namespace as well. They keep their names.
	RDMAInterfaces []string
	// Hooks are put after those of the spec.
	Hooks []Hook
	// RemoveHooks are the paths of hooks, of any stage, to take out.
	RemoveHooks []string

	// Reasons say why things are added. They change no spec, and never contradict.
	Reasons []Reason
}

// Node is one device node of a container. It is comparable.
type Node struct {
	// Path in the container, absolute.
	Path string
	// Type is "c" or "b".
	Type         string
	Major, Minor int64
	// Mode holds permission bits; 0 leaves them to the runtime.
	Mode     uint32
	UID, GID uint32
	// Access is what the container may do: "r", "w", "rw", with "m" for mknod.
	// "" makes the node without a rule.
	Access string
}

// Rule is one device rule, applied in the order of the list. It is comparable.
type Rule struct {
	Allow bool
	// Type is "c", "b", or "a" for both ("" is the same).
	Type string
	// Major and Minor may be Any.
	Major, Minor int64
	Access       string
}

// Number returns the type and the numbers of the device: "c 195:0".
func (n Node) Number() string { return fmt.Sprintf("%s %d:%d", n.Type, n.Major, n.Minor) }

// Rule is the rule that allows the node's Access.
func (n Node) Rule() Rule {
	return Rule{Allow: true, Type: n.Type, Major: n.Major, Minor: n.Minor, Access: n.Access}
}

// MountRef names mounts of a spec.
type MountRef struct {
	Destination string
	// Source, unless "", must be that of the mount.
	Source string
}

// Stage is when a hook runs: the name of its list in the spec.
type Stage string

// The stages of the OCI runtime specification.
const (
	Prestart        Stage = "prestart"
	CreateRuntime   Stage = "createRuntime"
	CreateContainer Stage = "createContainer"
	StartContainer  Stage = "startContainer"
	Poststart       Stage = "poststart"
	Poststop        Stage = "poststop"
)

// Hook is a hook and when it runs.
type Hook struct {
	Stage Stage
	specs.Hook
}

// FromSpec reads a rule of a spec.
func FromSpec(r specs.LinuxDeviceCgroup) Rule {
	return Rule{Allow: r.Allow, Type: r.Type, Major: numberOrWildcard(r.Major), Minor: numberOrWildcard(r.Minor), Access: r.Access}
}

// Spec is the rule as a spec has it.
func (r Rule) Spec() specs.LinuxDeviceCgroup {
	return specs.LinuxDeviceCgroup{Allow: r.Allow, Type: r.Type, Major: toPointer(r.Major), Minor: toPointer(r.Minor), Access: r.Access}
}

// canonical is the one way of writing what a rule means.
func (r Rule) canonical() Rule {
	r.Type = cmp.Or(r.Type, "a")
	return r
}

func numberOrWildcard(p *int64) int64 {
	if p == nil {
		return Any
	}
	return *p
}

func toPointer(n int64) *int64 {
	if n == Any {
		return nil
	}
	return &n
}
