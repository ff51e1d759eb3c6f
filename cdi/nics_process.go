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

// HCAVariable tells NCCL which adapters to use. Of NCCL's other variables none is ever
// set here: what chooses algorithms, or turns a transport off, is the program's to say.
const HCAVariable = "NCCL_IB_HCA"

// HCANames are the leased adapters as NCCL is told of them, with their ports: "=mlx5_0:1".
// The "=" has NCCL take the names as they are, and not mlx5_10 for mlx5_1.
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

// CheckChosenHCAs is for a container whose own environment says which adapters NCCL is to use:
// that counts, and note says, for people, what it names and wasn't leased; "" if there
// is nothing to say. Source: NCCL's documentation of NCCL_IB_HCA.
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

// ProcessLimits is what this process, and so the runtime that it becomes, may give a container.
type ProcessLimits struct {
	// Raises says that it may raise hard limits (CAP_SYS_RESOURCE).
	Raises bool
	// Memlock and NoFile are its hard limits.
	Memlock, NoFile uint64
}

// wantedFiles is how many open files NCCL wants on a large node.
const wantedFiles = 128 << 10

// RDMALimits raises what RDMA needs beyond what engines give, as far as this process may:
// locked memory, which every registered buffer is, without a limit, and many files.
// A limit that the spec sets is somebody's wish and stays, but for the 1024 files that
// containerd's library writes into every spec. The urgent remarks say what stays too low.
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
	const unlimited = math.MaxUint64
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
	files, set := of("RLIMIT_NOFILE")
	most := own.NoFile
	if own.Raises {
		most = max(most, wantedFiles)
	}
	best := specs.POSIXRlimit{Type: "RLIMIT_NOFILE", Soft: min(most, wantedFiles), Hard: most}
	switch {
	case set && files == best: // the launcher's
	case set && (files.Soft != 1024 || files.Hard != 1024):
		return e, low
	default:
		e.Rlimits = append(e.Rlimits, best)
	}
	if most < wantedFiles {
		tooLow("nofile is %d, and this process may not raise it (CAP_SYS_RESOURCE): NCCL wants %d on a large node", most, wantedFiles)
	}
	return e, low
}
