package cgroup

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strings"
)

// Placement is all that decides where a runtime puts a container.
type Placement struct {
	// CgroupsPath is linux.cgroupsPath of the OCI spec.
	CgroupsPath string
	// Container is the container's id.
	Container string
	// Systemd: the runtime was called with --systemd-cgroup, and CgroupsPath has
	// the form "slice:prefix:name".
	Systemd bool
	// Runtime is "runc" or "crun"; they differ where CgroupsPath is relative or
	// missing. Anything else counts as runc.
	Runtime string
	// Own is the cgroup of the process that becomes the runtime: runc puts a
	// relative path below it.
	Own string
}

// PredictPath returns the cgroup in which the runtime will create the container, by the rules of
// runc 1.1 and crun 1.8. It changes nothing. A path that would leave the hierarchy is ErrPath.
func (h Hierarchy) PredictPath(p Placement) (string, error) {
	if p.Systemd {
		return predictSystemdPath(p)
	}
	if strings.HasPrefix(p.CgroupsPath, "/") {
		return cleanPath(p.CgroupsPath)
	}
	name := cmp.Or(p.CgroupsPath, p.Container)
	if p.Runtime == "crun" {
		return cleanPath("/" + name)
	}
	own := cmp.Or(p.Own, "/")
	if h.Version == V2 {
		// On version 2 a cgroup with processes can't enable controllers for children, so runc
		// creates a sibling.
		own = filepath.Dir(own)
	}
	return cleanPath(strings.TrimSuffix(own, "/") + "/" + name)
}

func predictSystemdPath(p Placement) (string, error) {
	slice, prefix, name, err := p.splitSystemdPath()
	if err != nil {
		return "", err
	}
	unit := unitOf(prefix, name)
	if strings.Contains(unit, "/") {
		return "", fmt.Errorf("%w: unit %q", ErrPath, unit)
	}
	parent, err := ExpandSlice(slice)
	if err != nil {
		return "", err
	}
	return cleanPath(strings.TrimSuffix(parent, "/") + "/" + unit)
}

// Under returns the placement with another systemd slice and the same prefix and name. A container
// that is itself a slice can't be moved, because its name determines its parent; the error is
// ErrPath.
func (p Placement) Under(slice string) (Placement, error) {
	_, prefix, name, err := p.splitSystemdPath()
	if err == nil && strings.HasSuffix(name, ".slice") {
		err = fmt.Errorf("%w: %s can't go into another slice", ErrPath, name)
	}
	p.CgroupsPath = slice + ":" + prefix + ":" + name
	return p, err
}

// splitSystemdPath splits "slice:prefix:name" as runc does, with the runtimes' defaults.
func (p Placement) splitSystemdPath() (slice, prefix, name string, err error) {
	if p.CgroupsPath == "" {
		prefix := "runc"
		if p.Runtime == "crun" {
			prefix = "crun"
		}
		return "system.slice", prefix, p.Container, nil
	}
	f := strings.Split(p.CgroupsPath, ":")
	if len(f) != 3 || f[2] == "" {
		return "", "", "", fmt.Errorf("%w: %q isn't slice:prefix:name", ErrPath, p.CgroupsPath)
	}
	return cmp.Or(f[0], "system.slice"), f[1], f[2], nil
}

func unitOf(prefix, name string) string {
	switch {
	case strings.HasSuffix(name, ".slice"):
		return name
	case prefix == "":
		return name + ".scope"
	}
	return prefix + "-" + name + ".scope"
}

// ExpandSlice gives the cgroup of a systemd slice: each dash in a slice's name
// is a level, so "a-b.slice" is "/a.slice/a-b.slice", and "-.slice" is "/".
// Source: systemd.slice(5).
func ExpandSlice(slice string) (string, error) {
	name, ok := strings.CutSuffix(slice, ".slice")
	if !ok || name == "" || strings.Contains(name, "/") {
		return "", fmt.Errorf("%w: slice %q", ErrPath, slice)
	}
	if name == "-" {
		return "/", nil
	}
	var path, prefix strings.Builder
	for part := range strings.SplitSeq(name, "-") {
		if part == "" {
			return "", fmt.Errorf("%w: slice %q", ErrPath, slice)
		}
		if prefix.Len() > 0 {
			prefix.WriteByte('-')
		}
		prefix.WriteString(part)
		path.WriteString("/" + prefix.String() + ".slice")
	}
	return path.String(), nil
}
