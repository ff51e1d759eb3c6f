package spec

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/internal/spell"
)

// rlimitNames are docker's names of the kernel's limits (RLIMIT_*), in the order of their
// numbers.
const rlimitNames = "cpu fsize data stack core rss nproc nofile memlock as locks sigpending msgqueue nice rtprio rttime"

// suggestUlimit returns the nearest known name as the end of an error, "" for a known name.
func suggestUlimit(name string) string {
	if slices.Contains(strings.Fields(rlimitNames), name) {
		return ""
	}
	return spell.Suggestion(name, strings.Fields(rlimitNames)...)
}

// ParseUlimit reads docker's --ulimit: "NAME=SOFT[:HARD]". -1 and "unlimited" mean no limit.
// HARD defaults to SOFT.
func ParseUlimit(s string) (specs.POSIXRlimit, error) {
	name, values, has := strings.Cut(s, "=")
	if !has || !slices.Contains(strings.Fields(rlimitNames), name) {
		return specs.POSIXRlimit{}, fmt.Errorf("--ulimit %s is not NAME=SOFT[:HARD]%s, where NAME is one of %s", s, suggestUlimit(name), strings.Join(strings.Fields(rlimitNames), ", "))
	}
	first, second, both := strings.Cut(values, ":")
	if !both {
		second = first
	}
	soft, err1 := parseRlimit(first)
	hard, err2 := parseRlimit(second)
	switch {
	case err1 != nil || err2 != nil:
		return specs.POSIXRlimit{}, fmt.Errorf("--ulimit %s: a limit is a number, or -1 for none", s)
	case soft > hard:
		return specs.POSIXRlimit{}, fmt.Errorf("--ulimit %s: the soft limit is above the hard one", s)
	}
	return specs.POSIXRlimit{Type: "RLIMIT_" + strings.ToUpper(name), Soft: soft, Hard: hard}, nil
}

func parseRlimit(s string) (uint64, error) {
	if s == "-1" || s == "unlimited" {
		return math.MaxUint64, nil
	}
	return strconv.ParseUint(s, 10, 63)
}

// checkUlimits returns an error for limits that the runtime couldn't set.
func checkUlimits(limits []specs.POSIXRlimit, h Host) error {
	seen := map[string]specs.POSIXRlimit{}
	for _, l := range limits {
		name := strings.ToLower(strings.TrimPrefix(l.Type, "RLIMIT_"))
		if before, twice := seen[name]; twice && before != l {
			return fmt.Errorf("--ulimit %s is given twice, with other values", name)
		}
		seen[name] = l
		if err := checkHardLimit(name, l.Hard, h); err != nil {
			return err
		}
	}
	return nil
}

func checkHardLimit(name string, hard uint64, h Host) error {
	if name == "nofile" {
		if most, err := smallfile.Int("/proc/sys/fs/nr_open"); err == nil && hard > uint64(most) {
			return fmt.Errorf("--ulimit nofile: the machine gives no process more than %d (/proc/sys/fs/nr_open)", most)
		}
	}
	if h.MayExceedLimits() {
		return nil
	}
	own, err := readHardLimit(slices.Index(strings.Fields(rlimitNames), name))
	if err != nil {
		return err
	}
	if hard > own {
		return fmt.Errorf("--ulimit %s: this process may not raise it above its own hard limit, %d: CAP_SYS_RESOURCE is missing", name, own)
	}
	return nil
}

// minNoFile is the number of open files that NCCL needs on a large node.
const minNoFile = 128 << 10

// defaultRlimits returns raised limits for open files and locked memory, as far as this process may raise
// them. All other limits are inherited.
func defaultRlimits(h Host) []specs.POSIXRlimit {
	const unlimited = ^uint64(0)
	var limits []specs.POSIXRlimit
	mayRaise := h.MayExceedLimits()
	if hard := h.NoFile; hard > 0 || mayRaise {
		if mayRaise {
			hard = max(hard, minNoFile)
		}
		limits = append(limits, specs.POSIXRlimit{Type: "RLIMIT_NOFILE", Hard: hard, Soft: min(hard, minNoFile)})
	}
	if mayRaise || h.Memlock == unlimited {
		limits = append(limits, specs.POSIXRlimit{Type: "RLIMIT_MEMLOCK", Hard: unlimited, Soft: unlimited})
	}
	return limits
}

// applyUlimits replaces default limits by those that were asked for, and appends the others.
func applyUlimits(usual, asked []specs.POSIXRlimit) []specs.POSIXRlimit {
	for _, a := range asked {
		at := slices.IndexFunc(usual, func(u specs.POSIXRlimit) bool { return u.Type == a.Type })
		if at < 0 {
			usual = append(usual, a)
		} else {
			usual[at] = a
		}
	}
	return usual
}
