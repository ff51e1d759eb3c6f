package spec

import (
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/internal/spell"
	"github.com/berth-gpu/berth/launcher/rootfs"
)

// capabilityNames are the kernel's capabilities in the order of their bits.
const capabilityNames = `
CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP
LINUX_IMMUTABLE NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK
IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT
SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE
AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND
AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE`

// defaultCapabilityNames are the capabilities that every container's root has: docker's, without MKNOD.
const defaultCapabilityNames = `AUDIT_WRITE CHOWN DAC_OVERRIDE FOWNER FSETID KILL NET_BIND_SERVICE
NET_RAW SETFCAP SETGID SETPCAP SETUID SYS_CHROOT`

// withheldReasons returns the capabilities that no container gets, with the reasons.
func withheldReasons() map[string]string {
	return map[string]string{
		"CAP_MKNOD":           "it makes device nodes, and a task's devices come with its lease: --gpus or --device",
		"CAP_SYS_MODULE":      "it loads code into the kernel, which device isolation can't stop",
		"CAP_SYS_RAWIO":       "it reaches devices by I/O ports, past all device rules",
		"CAP_SYS_BOOT":        "it restarts or replaces the machine's kernel",
		"CAP_DAC_READ_SEARCH": "it opens the host's files by handle, whatever is mounted; bind what is needed with -v",
		"CAP_BPF":             "it detaches device rules from cgroups; trace from the host",
	}
}

// Capabilities are the capabilities of a container's root.
type Capabilities struct {
	Names []string // sorted
	// Unusual means that at least one of them isn't a default.
	Unusual bool
}

// ChooseCapabilities adds capabilities to the defaults and drops others, as docker does. Names are in
// either case, with or without CAP_, or ALL. Names take precedence over ALL, and drop over ALL in add.
//
// The result has no capability that this process lacks, and none that would lift device isolation.
// Adding such a capability by name is an error.
func ChooseCapabilities(h Host, add, drop []string) (Capabilities, error) {
	adds, err := parseCapabilities("--cap-add", add)
	if err != nil {
		return Capabilities{}, err
	}
	drops, err := parseCapabilities("--cap-drop", drop)
	if err != nil {
		return Capabilities{}, err
	}
	if err := checkGrantable(h, adds); err != nil {
		return Capabilities{}, err
	}
	var c Capabilities
	usual, withheld := strings.Fields(defaultCapabilityNames), withheldReasons()
	for bit, word := range strings.Fields(capabilityNames) {
		name, isUsual := "CAP_"+word, slices.Contains(usual, word)
		_, isWithheld := withheld[name]
		has := isUsual && !drops["ALL"] || adds["ALL"]
		if drops[name] {
			has = false
		}
		if (has || adds[name]) && !isWithheld && h.Capabilities&(1<<bit) != 0 {
			c.Names, c.Unusual = append(c.Names, name), c.Unusual || !isUsual
		}
	}
	slices.Sort(c.Names)
	return c, nil
}

// parseCapabilities returns the capabilities that a flag names, as "CAP_…" or "ALL".
func parseCapabilities(flag string, names []string) (map[string]bool, error) {
	set := map[string]bool{}
	for _, given := range names {
		name := strings.TrimPrefix(strings.ToUpper(given), "CAP_")
		switch {
		case name == "ALL":
			set[name] = true
		case name != "" && slices.Contains(strings.Fields(capabilityNames), name):
			set["CAP_"+name] = true
		default:
			return nil, fmt.Errorf("%s %s: the kernel has no such capability%s; man 7 capabilities lists them", flag, given, spell.Suggestion(name, strings.Fields(capabilityNames)...))
		}
	}
	return set, nil
}

func checkGrantable(h Host, adds map[string]bool) error {
	for bit, word := range strings.Fields(capabilityNames) {
		name := "CAP_" + word
		if !adds[name] {
			continue
		}
		if why, isWithheld := withheldReasons()[name]; isWithheld {
			return fmt.Errorf("--cap-add %s: no task gets %s: %s", word, name, why)
		}
		if h.Capabilities&(1<<bit) == 0 {
			return fmt.Errorf("--cap-add %s: this process itself has no %s", word, name)
		}
	}
	return nil
}

// linuxCapabilities gives capabilities to root only. Other users have none; the bounding set limits what
// they get from set-uid programs.
func linuxCapabilities(u rootfs.User, names []string) *specs.LinuxCapabilities {
	c := &specs.LinuxCapabilities{Bounding: names}
	if u.UID == 0 {
		c.Permitted, c.Effective = slices.Clone(names), slices.Clone(names)
	}
	return c
}
