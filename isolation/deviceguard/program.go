package deviceguard

import (
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// MaxLevel is the deepest level of a cgroup that can have an entry; children of the root are
// on level 1. Processes may live at any depth below it.
const MaxLevel = 16

// programLevels is how many levels the program looks at. They are more than MaxLevel, because the kernel counts from
// the real root of the tree, and the root that berth sees may be that of a cgroup namespace.
const programLevels = 2 * MaxLevel

// IsSeen reports whether the program sees an entry of the cgroup with this path.
func IsSeen(path string) bool { return strings.Count(path, "/") <= MaxLevel }

// The structures, beside [Number], that Go and the program share. All are in the machine's byte order and without
// padding.
type (
	// grant is the key of the map of grants: this device can be opened in this cgroup.
	grant struct {
		Cgroup       uint64
		Major, Minor uint32
	}
	// settings is the only value of the map of settings.
	settings struct {
		// RootAllowed is 1 if the host's root opens guarded devices without an entry.
		RootAllowed uint64
		// NamespaceDevice and NamespaceInode identify the host's PID namespace; the device is
		// in the kernel's own encoding.
		NamespaceDevice, NamespaceInode uint64
	}
)

// Values of the map of devices.
const (
	deviceGuarded uint32 = 1
	deviceOpen    uint32 = 2
)

// Offsets in struct bpf_cgroup_dev_ctx { __u32 access_type, major, minor; }, include/uapi/linux/bpf.h.
// The high half of access_type is the access, the low half the type.
const (
	contextAccess = 0
	contextMajor  = 4
	contextMinor  = 8
)

// Places on the program's stack, below its frame pointer.
const (
	stackNumber    = -8  // Number
	stackCgroup    = -16 // key of the map of cgroups
	stackGrant     = -32 // grant
	stackNamespace = -40 // struct bpf_pidns_info
	stackIndex     = -44 // key of the map of settings
)

// newInstructions writes the program. In C it would be:
//
//	int guard(struct bpf_cgroup_dev_ctx *ctx) {
//		if ((ctx->access_type & 0xffff) != BPF_DEVCG_DEV_CHAR)
//			return 1;                                  // disks have numbers of their own
//		if (!(ctx->access_type >> 16 & (BPF_DEVCG_ACC_READ | BPF_DEVCG_ACC_WRITE)))
//			return 1;                                  // mknod, or access(2) with F_OK
//		struct number n = { ctx->major, ctx->minor };
//		u32 *device = lookup(&devices, &n);
//		if (!device) { n.minor = ~0; device = lookup(&devices, &n); }
//		if (!device || *device == OPEN)
//			return 1;
//		for (int level = 32; level >= 1; level--) {        // the deepest entry decides
//			u64 cgroup = bpf_get_current_ancestor_cgroup_id(level);
//			u32 *entry = cgroup ? lookup(&cgroups, &cgroup) : NULL;
//			if (!entry) continue;
//			if (*entry == EXEMPT) return 1;
//			if (*entry == CONTAINER) return 0;
//			struct grant g = { cgroup, ctx->major, ctx->minor };
//			return lookup(&grants, &g) != NULL;
//		}
//		struct settings *s = lookup(&settings, &zero);
//		if (!s || !s->root_allowed || (u32)bpf_get_current_uid_gid() != 0)
//			return 0;
//		struct bpf_pidns_info ns;                          // only with namespaces
//		return bpf_get_ns_current_pid_tgid(s->device, s->inode, &ns, sizeof(ns)) == 0;
//	}
//
// It asks cgroups from below, because bpf_get_current_ancestor_cgroup_id gives 0 for levels that
// the process's cgroup doesn't reach. Without namespaces (before Linux 6.10) every process with
// uid 0 in the first user namespace counts as the host's root.
func newInstructions(m maps, namespaces bool) asm.Instructions {
	lookup := func(table *ebpf.Map, key int32) asm.Instructions {
		return asm.Instructions{
			asm.LoadMapPtr(asm.R1, table.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, key),
			asm.FnMapLookupElem.Call(),
		}
	}
	const context, cgroup = asm.R6, asm.R7
	p := asm.Instructions{
		asm.Mov.Reg(context, asm.R1),
		asm.LoadMem(asm.R2, context, contextAccess, asm.Word),
		asm.Mov.Reg(asm.R3, asm.R2),
		asm.And.Imm(asm.R3, 0xffff),
		asm.JNE.Imm(asm.R3, unix.BPF_DEVCG_DEV_CHAR, "allow"),
		asm.RSh.Imm(asm.R2, 16),
		asm.And.Imm(asm.R2, unix.BPF_DEVCG_ACC_READ|unix.BPF_DEVCG_ACC_WRITE),
		asm.JEq.Imm(asm.R2, 0, "allow"),

		asm.LoadMem(asm.R2, context, contextMajor, asm.Word),
		asm.StoreMem(asm.RFP, stackNumber, asm.R2, asm.Word),
		asm.LoadMem(asm.R3, context, contextMinor, asm.Word),
		asm.StoreMem(asm.RFP, stackNumber+4, asm.R3, asm.Word),
	}
	p = append(p, lookup(m.Devices, stackNumber)...)
	p = append(p,
		asm.JNE.Imm(asm.R0, 0, "listed"),
		asm.StoreImm(asm.RFP, stackNumber+4, -1, asm.Word),
	)
	p = append(p, lookup(m.Devices, stackNumber)...)
	p = append(p,
		asm.JEq.Imm(asm.R0, 0, "allow"),
		asm.LoadMem(asm.R0, asm.R0, 0, asm.Word).WithSymbol("listed"),
		asm.JEq.Imm(asm.R0, int32(deviceOpen), "allow"),
	)
	for level := int32(programLevels); level >= 1; level-- {
		p = append(p,
			asm.Mov.Imm(asm.R1, level).WithSymbol(labelOfLevel(level)),
			asm.FnGetCurrentAncestorCgroupId.Call(),
			asm.JEq.Imm(asm.R0, 0, labelOfLevel(level-1)),
			asm.Mov.Reg(cgroup, asm.R0),
			asm.StoreMem(asm.RFP, stackCgroup, cgroup, asm.DWord),
		)
		p = append(p, lookup(m.Cgroups, stackCgroup)...)
		p = append(p, asm.JNE.Imm(asm.R0, 0, "entry"))
	}
	p = append(p, asm.StoreImm(asm.RFP, stackIndex, 0, asm.Word).WithSymbol(labelOfLevel(0)))
	p = append(p, lookup(m.Settings, stackIndex)...)
	p = append(p,
		asm.JEq.Imm(asm.R0, 0, "deny"),
		asm.Mov.Reg(asm.R8, asm.R0),
		asm.LoadMem(asm.R1, asm.R8, 0, asm.DWord),
		asm.JEq.Imm(asm.R1, 0, "deny"),
		asm.FnGetCurrentUidGid.Call(),
		asm.Mov.Reg32(asm.R0, asm.R0), // the low half is the uid
		asm.JNE.Imm(asm.R0, 0, "deny"),
	)
	if namespaces {
		p = append(p,
			asm.LoadMem(asm.R1, asm.R8, 8, asm.DWord),
			asm.LoadMem(asm.R2, asm.R8, 16, asm.DWord),
			asm.Mov.Reg(asm.R3, asm.RFP),
			asm.Add.Imm(asm.R3, stackNamespace),
			asm.Mov.Imm(asm.R4, 8),
			asm.FnGetNsCurrentPidTgid.Call(),
			asm.JNE.Imm(asm.R0, 0, "deny"),
		)
	}
	p = append(p,
		asm.Mov.Imm(asm.R0, 1).WithSymbol("allow"),
		asm.Return(),

		asm.LoadMem(asm.R0, asm.R0, 0, asm.Word).WithSymbol("entry"),
		asm.JEq.Imm(asm.R0, int32(Exempt), "allow"),
		asm.JNE.Imm(asm.R0, int32(Lease), "deny"),
		asm.StoreMem(asm.RFP, stackGrant, cgroup, asm.DWord),
		asm.LoadMem(asm.R2, context, contextMajor, asm.Word),
		asm.StoreMem(asm.RFP, stackGrant+8, asm.R2, asm.Word),
		asm.LoadMem(asm.R2, context, contextMinor, asm.Word),
		asm.StoreMem(asm.RFP, stackGrant+12, asm.R2, asm.Word),
	)
	p = append(p, lookup(m.Grants, stackGrant)...)
	return append(p,
		asm.JNE.Imm(asm.R0, 0, "allow"),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("deny"),
		asm.Return(),
	)
}

// labelOfLevel is where the program asks for the ancestor on this level; level 0 is past the last.
func labelOfLevel(level int32) string { return fmt.Sprint("level ", level) }
