package devices

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/internal/atomicfile"
)

// systemdDir has the unit files that are valid until the next boot. It exists if systemd runs the
// machine, see sd_booted(3).
const systemdDir = "/run/systemd/system"

// dropIn sorts after the files in which systemd keeps the properties that a runtime has set
// ("50-DeviceAllow.conf"), so it takes precedence.
const dropIn = "50-berth-devices.conf"

// outerDropIn is the drop-in of an outer slice.
const (
	outerDropIn = "50-berth-outer.conf"
	outerText   = "# Written by berth; gone when the container is.\n[Unit]\nStopWhenUnneeded=yes\n"
)

// UnitOf returns the unit whose cgroup is at path: a scope, as runtimes create for containers, or a
// slice. A cgroup named "container" in a scope, as crun creates it, counts as the scope. ok is false
// for any other cgroup: cgroups below a service or a user's systemd belong to that service.
func UnitOf(path string) (unit string, ok bool) {
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	if n := len(parts); n > 1 && parts[n-1] == "container" && strings.HasSuffix(parts[n-2], ".scope") {
		parts = parts[:n-1]
	}
	last := len(parts) - 1
	notSlice := func(name string) bool { return !isUnit(name, ".slice") }
	if slices.ContainsFunc(parts[:last], notSlice) || notSlice(parts[last]) && !isUnit(parts[last], ".scope") {
		return "", false
	}
	// Systemd puts a "_" before a name that could be that of a control file.
	return strings.TrimPrefix(parts[last], "_"), true
}

// isUnit reports whether name is a valid unit name with this suffix: allowed characters, and within
// the length limit. Source: systemd.unit(5).
func isUnit(name, suffix string) bool {
	stem, ok := strings.CutSuffix(name, suffix)
	odd := func(r rune) bool {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		return !letter && !strings.ContainsRune(`:-_.\@`, r)
	}
	return ok && stem != "" && len(name) <= 255 && !strings.ContainsFunc(stem, odd)
}

// WriteUnitRules writes the device rules of a unit, followed by [Defaults], as a drop-in in dir (""
// means /run/systemd/system). systemd reads it when it loads the unit and at each daemon-reload.
// Without it, a daemon-reload would restore the rules that the runtime set at the start. Until
// systemd reads it, the rules that [Apply] has set stay in force. If dir doesn't exist, systemd
// isn't running and nothing is written.
//
// It is idempotent. Rules that systemd can't express are an error that names the rule: a denied part
// of a wildcard, and one minor of every major. The caller removes the drop-in with [RemoveUnitFiles]
// when it releases the container; a reboot removes it as well.
func WriteUnitRules(dir, unit string, rules []edits.Rule) error {
	dir, err := unitDir(dir, unit)
	if err != nil {
		return err
	}
	text, err := unitText(unit, slices.Concat(rules, Defaults()))
	if err != nil {
		return fmt.Errorf("tell systemd device rules of %s: %w", unit, err)
	}
	if err := writeDropIn(dir, dropIn, text); err != nil {
		return fmt.Errorf("tell systemd device rules of %s: %w", unit, err)
	}
	return nil
}

// WriteOuterSlice writes the drop-in of a slice that becomes an outer cgroup, before systemd loads
// the slice. [RemoveUnitFiles] removes it. If dir ("" means /run/systemd/system) doesn't exist,
// nothing is written.
//
// The drop-in makes systemd stop the slice and remove its cgroup when no unit needs it; by default
// systemd keeps an empty slice. It also contains the rules of [CreateOuterCgroup], which systemd applies if
// it has to create the cgroup again.
func WriteOuterSlice(dir, slice string, rules []edits.Rule) error {
	place, err := unitDir(dir, slice)
	if err == nil {
		err = writeDropIn(place, outerDropIn, outerText)
	}
	if err != nil {
		return fmt.Errorf("write drop-ins of %s: %w", slice, err)
	}
	return WriteUnitRules(dir, slice, outerRules(rules))
}

// ListOuterSlices lists the slices that have a drop-in of [WriteOuterSlice].
func ListOuterSlices(dir string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(cmp.Or(dir, systemdDir), "*.slice.d", outerDropIn))
	for i, f := range files {
		files[i] = strings.TrimSuffix(filepath.Base(filepath.Dir(f)), ".d")
	}
	return files, err
}

func writeDropIn(dir, name, text string) error {
	if _, err := os.Stat(filepath.Dir(dir)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for {
		err := os.Mkdir(dir, 0o755)
		if err == nil || errors.Is(err, fs.ErrExist) {
			err = atomicfile.Write(filepath.Join(dir, name), []byte(text), 0o644, atomicfile.Options{})
		}
		// A concurrent RemoveUnitFiles for an earlier container may remove the directory in between.
		if errors.Is(err, fs.ErrNotExist) {
			if _, gone := os.Stat(filepath.Dir(dir)); gone == nil {
				continue
			}
		}
		return err
	}
}

// RemoveUnitFiles removes the drop-in that [WriteUnitRules] or [WriteOuterSlice] wrote. A missing
// drop-in is not an error. Other files of the unit stay.
func RemoveUnitFiles(dir, unit string) error {
	dir, err := unitDir(dir, unit)
	if err != nil {
		return err
	}
	for _, name := range []string{dropIn, outerDropIn} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove drop-ins of %s: %w", unit, err)
		}
	}
	_ = os.Remove(dir) // fails if the directory has other files
	return nil
}

func unitDir(dir, unit string) (string, error) {
	if !isUnit(unit, ".scope") && !isUnit(unit, ".slice") {
		return "", fmt.Errorf("%q is neither a scope nor a slice of systemd", unit)
	}
	return filepath.Join(cmp.Or(dir, systemdDir), unit+".d"), nil
}

// unitText is the drop-in: it resets DeviceAllow and then lists the allowed devices.
func unitText(unit string, rules []edits.Rule) (string, error) {
	l, err := reduceRules(rules)
	if err != nil {
		return "", err
	}
	section, policy := "Scope", "strict"
	if strings.HasSuffix(unit, ".slice") {
		section = "Slice"
	}
	if l.all {
		policy = "auto"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# Written by berth; gone when the container is.\n[%s]\nDevicePolicy=%s\nDeviceAllow=\n", section, policy)
	for _, e := range l.entries {
		name, err := unitDevice(e.device)
		if err != nil {
			return "", fmt.Errorf("allow %s: %w", e, err)
		}
		fmt.Fprintf(&b, "DeviceAllow=%s %s\n", name, e.access)
	}
	return b.String(), nil
}

// unitDevice names a device as systemd.resource-control(5) has it. The major is written as a number,
// because several drivers may share a name.
func unitDevice(d device) (string, error) {
	kind := map[string]string{"c": "char", "b": "block"}[d.kind]
	switch {
	case d.major == edits.Any && d.minor == edits.Any:
		return kind + "-*", nil
	case d.major == edits.Any:
		return "", errors.New("systemd can't express one minor of every major")
	case d.minor == edits.Any:
		return fmt.Sprintf("%s-%d", kind, d.major), nil
	}
	return fmt.Sprintf("/dev/%s/%d:%d", kind, d.major, d.minor), nil
}
