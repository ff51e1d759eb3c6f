package launcher

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/internal/spell"
)

// rlimitNames are the kernel's limits of single processes, in Docker's words, in the
// order of their numbers.
const rlimitNames = "cpu fsize data stack core rss nproc nofile memlock as locks sigpending msgqueue nice rtprio rttime"

// meantLimit is the nearest name to one that isn't there.
func meantLimit(name string) string {
	if slices.Contains(strings.Fields(rlimitNames), name) {
		return ""
	}
	return spell.Meant(name, strings.Fields(rlimitNames)...)
}

// ParseUlimit reads Docker's --ulimit: "NAME=SOFT[:HARD]", where -1 and "unlimited"
// mean no limit, and HARD is SOFT if it isn't given.
func ParseUlimit(s string) (specs.POSIXRlimit, error) {
	name, values, has := strings.Cut(s, "=")
	if !has || !slices.Contains(strings.Fields(rlimitNames), name) {
		return specs.POSIXRlimit{}, fmt.Errorf("--ulimit %s is not NAME=SOFT[:HARD]%s, where NAME is one of %s", s, meantLimit(name), strings.Join(strings.Fields(rlimitNames), ", "))
	}
	first, second, both := strings.Cut(values, ":")
	if !both {
		second = first
	}
	soft, err1 := rlimitValue(first)
	hard, err2 := rlimitValue(second)
	switch {
	case err1 != nil || err2 != nil:
		return specs.POSIXRlimit{}, fmt.Errorf("--ulimit %s: a limit is a number, or -1 for none", s)
	case soft > hard:
		return specs.POSIXRlimit{}, fmt.Errorf("--ulimit %s: the soft limit is above the hard one", s)
	}
	return specs.POSIXRlimit{Type: "RLIMIT_" + strings.ToUpper(name), Soft: soft, Hard: hard}, nil
}

func rlimitValue(s string) (uint64, error) {
	if s == "-1" || s == "unlimited" {
		return math.MaxUint64, nil
	}
	return strconv.ParseUint(s, 10, 63)
}

// checkUlimits fails for what the kernel would refuse the runtime.
func (o Options) checkUlimits(h *host) error {
	seen := map[string]specs.POSIXRlimit{}
	for _, l := range o.Ulimits {
		name := strings.ToLower(strings.TrimPrefix(l.Type, "RLIMIT_"))
		if before, twice := seen[name]; twice && before != l {
			return fmt.Errorf("--ulimit %s is given twice, with other values", name)
		}
		seen[name] = l
		if err := h.mayLimit(name, l.Hard); err != nil {
			return err
		}
	}
	return nil
}

func (h *host) mayLimit(name string, hard uint64) error {
	if name == "nofile" {
		if most, err := smallfile.Int("/proc/sys/fs/nr_open"); err == nil && hard > uint64(most) {
			return fmt.Errorf("--ulimit nofile: the machine gives no process more than %d (/proc/sys/fs/nr_open)", most)
		}
	}
	if h.give.Capabilities&(1<<unix.CAP_SYS_RESOURCE) != 0 {
		return nil
	}
	own, err := hardLimit(slices.Index(strings.Fields(rlimitNames), name))
	if err != nil {
		return err
	}
	if hard > own {
		return fmt.Errorf("--ulimit %s: this root may not raise it above its own hard limit, %d: CAP_SYS_RESOURCE is missing", name, own)
	}
	return nil
}
