package cdi

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
)

// HCAVariable tells NCCL which adapters to use. No other variable of NCCL is set: algorithms
// and transports are the program's choice.
const HCAVariable = "NCCL_IB_HCA"

// HCANames returns the leased adapters with their ports in NCCL's notation: "=mlx5_0:1". With the
// "=" NCCL compares whole names; without it mlx5_1 would match mlx5_10.
func HCANames(inv gpu.Inventory, leased []gpu.Device) string {
	var all []string
	for _, d := range leased {
		nic, ok := inv.NIC(d)
		if !ok {
			continue
		}
		if len(nic.Ports) == 0 {
			all = append(all, nic.Name)
		}
		for _, p := range nic.Ports {
			all = append(all, fmt.Sprintf("%s:%d", nic.Name, p.Number))
		}
	}
	return "=" + strings.Join(all, ",")
}

// CheckChosenHCAs is for a container whose own environment sets NCCL_IB_HCA, which is kept.
// note, for people, lists the adapters that the value names and that aren't leased; it is
// "" if there are none. Source: NCCL's documentation of NCCL_IB_HCA.
func CheckChosenHCAs(value string, inv gpu.Inventory, leased []gpu.Device) (note string) {
	if strings.HasPrefix(value, "^") {
		return ""
	}
	names, exact := strings.CutPrefix(value, "=")
	var have, missing []string
	for _, d := range leased {
		if nic, ok := inv.NIC(d); ok {
			have = append(have, nic.Name)
		}
	}
	for word := range strings.SplitSeq(names, ",") {
		name, _, _ := strings.Cut(word, ":")
		if name != "" && !slices.ContainsFunc(have, func(h string) bool { return h == name || !exact && strings.HasPrefix(h, name) }) {
			missing = append(missing, name)
		}
	}
	if len(missing) == 0 {
		return ""
	}
	return fmt.Sprintf("%s=%s names what isn't leased, %s: NCCL will use the rest, or none; leased: %s",
		HCAVariable, value, strings.Join(missing, ", "), strings.Join(have, ", "))
}

// ProcessLimits are the limits that this process, and so the runtime that it becomes, may give a
// container.
type ProcessLimits struct {
	// Raises is set if the process may raise hard limits (CAP_SYS_RESOURCE).
	Raises bool
	// Memlock and NoFile are the process's hard limits.
	Memlock, NoFile uint64
}

// wantedFiles is the number of open files that NCCL needs on a large node.
const wantedFiles = 128 << 10

// RDMALimits raises the limits that RDMA needs, as far as this process may: no limit on locked
// memory, because every registered buffer is locked, and many open files. A limit that the spec
// sets stays, except the 1024 files that containerd's library writes into every spec. The urgent
// remarks name the limits that stay too low. A limit that already has the wanted value has its
// reason too, for a spec that was prepared before.
func RDMALimits(have []specs.POSIXRlimit, own ProcessLimits) (e edits.Edits, low []edits.Removal) {
	tooLow := func(format string, args ...any) {
		r := edits.Remark(format, args...)
		r.Urgent = true
		low = append(low, r)
	}
	of := func(name string) (specs.POSIXRlimit, bool) {
		i := slices.IndexFunc(have, func(l specs.POSIXRlimit) bool { return l.Type == name })
		if i < 0 {
			return specs.POSIXRlimit{}, false
		}
		return have[i], true
	}
	const unlimited, why = math.MaxUint64, "RDMA and NCCL need more than engines give"
	locked, set := of("RLIMIT_MEMLOCK")
	switch {
	case set && locked.Soft < unlimited:
		tooLow("memlock is %d bytes, as the container was asked for: RDMA needs it unlimited", locked.Soft)
	case set:
	case own.Raises || own.Memlock == unlimited:
		e.Rlimits = append(e.Rlimits, specs.POSIXRlimit{Type: "RLIMIT_MEMLOCK", Soft: unlimited, Hard: unlimited})
	default:
		e.Rlimits = append(e.Rlimits, specs.POSIXRlimit{Type: "RLIMIT_MEMLOCK", Soft: own.Memlock, Hard: own.Memlock})
		tooLow("memlock is %d bytes, and this process may not raise it (CAP_SYS_RESOURCE): RDMA needs it unlimited", own.Memlock)
	}
	if !set || locked.Soft == unlimited || locked.Soft == own.Memlock {
		e.AddReason("limit", "RLIMIT_MEMLOCK", why)
	}
	files, set := of("RLIMIT_NOFILE")
	most := own.NoFile
	if own.Raises {
		most = max(most, wantedFiles)
	}
	best := specs.POSIXRlimit{Type: "RLIMIT_NOFILE", Soft: min(most, wantedFiles), Hard: most}
	switch {
	case set && files == best: // berth's launcher has set it
	case set && (files.Soft != 1024 || files.Hard != 1024):
		return e, low
	default:
		e.Rlimits = append(e.Rlimits, best)
	}
	e.AddReason("limit", "RLIMIT_NOFILE", why)
	if most < wantedFiles {
		tooLow("nofile is %d, and this process may not raise it (CAP_SYS_RESOURCE): NCCL wants %d on a large node", most, wantedFiles)
	}
	return e, low
}
