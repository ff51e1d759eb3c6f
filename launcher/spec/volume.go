package spec

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// ParseVolume reads "SRC:DST[:OPTION,…]": a file or directory of the host that
// appears in the container. SRC must exist; DST is absolute and is made if need
// be. Options: rw (the default), ro, bind, rbind (the default), nosuid, nodev,
// noexec, and the propagations private, rprivate (the default), slave, rslave,
// shared, rshared. Docker's z, Z, cached, delegated and consistent change nothing: they
// are for labels that a task hasn't got, and for other systems.
func ParseVolume(s string) (specs.Mount, error) {
	parts := strings.Split(s, ":")
	switch {
	case len(parts) == 1 && path.IsAbs(s):
		return specs.Mount{}, fmt.Errorf("volume %q is not SRC:DST[:OPTIONS]; for an empty directory in memory: --tmpfs %s", s, s)
	case len(parts) > 1 && parts[0] != "" && !strings.ContainsAny(parts[0], "./"):
		return specs.Mount{}, fmt.Errorf("volume %q: berth has no volumes with names; bind a directory of the host: -v ./%s", s, s)
	}
	if len(parts) < 2 || len(parts) > 3 || parts[0] == "" || parts[1] == "" {
		return specs.Mount{}, fmt.Errorf("volume %q is not SRC:DST[:OPTIONS]", s)
	}
	dst := path.Clean(parts[1])
	if !path.IsAbs(dst) || dst == "/" {
		return specs.Mount{}, fmt.Errorf("volume %q: %s is not an absolute path below / in the container", s, parts[1])
	}
	src, err := filepath.Abs(parts[0])
	if err != nil {
		return specs.Mount{}, fmt.Errorf("volume %q: %w", s, err)
	}
	if err := checkSource(src); err != nil {
		return specs.Mount{}, fmt.Errorf("volume %q: %w", s, err)
	}
	var given []string
	if len(parts) == 3 {
		given = strings.Split(parts[2], ",")
	}
	options, err := bindOptions(given)
	if err != nil {
		return specs.Mount{}, fmt.Errorf("volume %q: %w", s, err)
	}
	return specs.Mount{Destination: dst, Type: "bind", Source: src, Options: options}, nil
}

var errUnknownOption = errors.New("unknown option")

func bindOptions(given []string) ([]string, error) {
	bind, propagation := "rbind", "rprivate"
	var rest []string
	for _, o := range given {
		switch o {
		case "bind", "rbind":
			bind = o
		case "private", "rprivate", "slave", "rslave", "shared", "rshared":
			propagation = o
		case "rw", "ro", "nosuid", "nodev", "noexec":
			rest = append(rest, o)
		case "z", "Z", "cached", "delegated", "consistent":
		default:
			return nil, fmt.Errorf("%w %q: there are ro, rw, bind, rbind, nosuid, nodev, noexec, [r]private, [r]slave, [r]shared", errUnknownOption, o)
		}
	}
	if slices.Contains(rest, "ro") && slices.Contains(rest, "rw") {
		return nil, fmt.Errorf("both ro and rw")
	}
	return append([]string{bind, propagation}, rest...), nil
}

// IsCovered says whether a path lies at or below the destination of a mount.
func IsCovered(mounts []specs.Mount, p string) bool {
	return slices.ContainsFunc(mounts, func(m specs.Mount) bool {
		return p == m.Destination || strings.HasPrefix(p, m.Destination+"/")
	})
}
