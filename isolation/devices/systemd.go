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

// systemdDir is where systemd reads what is valid until the next boot. It exists
// while systemd runs the machine, which is how sd_booted(3) knows.
const systemdDir = "/run/systemd/system"

// dropIn comes after the files in which systemd keeps what a runtime asked it for
// ("50-DeviceAllow.conf"), and so has the last word.
const dropIn = "50-berth-devices.conf"

// outerDropIn is what systemd is told of an outer slice.
const (
	outerDropIn = "50-berth-outer.conf"
	outerText   = "# Written by berth; gone when the container is.\n[Unit]\nStopWhenUnneeded=yes\n"
)

// Unit returns the unit of which the cgroup at path is the whole: a scope, as
// runtimes make for containers, or a slice. ok is false for any other cgroup, as one
// that a service or a user's own systemd was handed: whose rules those are isn't ours
// to say. A cgroup named "container" in a scope, as crun makes it, counts as the scope.
func Unit(path string) (unit string, ok bool) {
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

// isUnit says that the name is that of a unit: no other letters, no more of them.
// Source: systemd.unit(5).
func isUnit(name, suffix string) bool {
	stem, ok := strings.CutSuffix(name, suffix)
	odd := func(r rune) bool {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		return !letter && !strings.ContainsRune(`:-_.\@`, r)
	}
	return ok && stem != "" && len(name) <= 255 && !strings.ContainsFunc(stem, odd)
}

// TellSystemd has systemd know the device rules of a unit, followed by [Defaults], by
// a drop-in in dir ("" means /run/systemd/system). Systemd reads it when it loads the
// unit and at each daemon-reload, where it would otherwise set the rules that the
// runtime once asked it for; until then nothing changes, and what holds is what
// [Apply] set. Where dir doesn't exist no systemd runs, and nothing is written.
//
// Twice is the same as once. What systemd can't say is an error that names the rule:
// a hole in a wildcard, and one minor of every major. Whoever releases the container
// calls [ForgetSystemd]; a reboot forgets too.
func TellSystemd(dir, unit string, rules []edits.Rule) error {
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

// TellOuter has systemd know a slice that is to be an outer cgroup, before it comes to
// have it; [ForgetSystemd] takes it away. Where dir ("" means /run/systemd/system)
// doesn't exist nothing is written.
//
// Systemd stops the slice once no unit needs it, and removes its cgroup: of itself it
// keeps one in which nothing is left. And it sets the rules of [MakeOuter] as well,
// should it ever have to make the cgroup again.
func TellOuter(dir, slice string, rules []edits.Rule) error {
	place, err := unitDir(dir, slice)
	if err == nil {
		err = writeDropIn(place, outerDropIn, outerText)
	}
	if err != nil {
		return fmt.Errorf("tell systemd of %s: %w", slice, err)
	}
	return TellSystemd(dir, slice, outerRules(rules))
}

// OuterSlices lists the slices of which [TellOuter] wrote, and that nobody forgot.
func OuterSlices(dir string) ([]string, error) {
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
		// One who forgets the life before may take the directory away in between.
		if errors.Is(err, fs.ErrNotExist) {
			if _, gone := os.Stat(filepath.Dir(dir)); gone == nil {
				continue
			}
		}
		return err
	}
}

// ForgetSystemd takes away what [TellSystemd] and [TellOuter] wrote; if there is nothing, that is no
// error. Others' files of the unit stay.
func ForgetSystemd(dir, unit string) error {
	dir, err := unitDir(dir, unit)
	if err != nil {
		return err
	}
	for _, name := range []string{dropIn, outerDropIn} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("have systemd forget %s: %w", unit, err)
		}
	}
	_ = os.Remove(dir) // unless somebody else's files are in it
	return nil
}

func unitDir(dir, unit string) (string, error) {
	if !isUnit(unit, ".scope") && !isUnit(unit, ".slice") {
		return "", fmt.Errorf("%q is neither a scope nor a slice of systemd", unit)
	}
	return filepath.Join(cmp.Or(dir, systemdDir), unit+".d"), nil
}

// unitText is the drop-in: an allow-list that takes the place of any other.
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

// unitDevice names a device as systemd.resource-control(5) has it. A driver's number
// stands for its name, which several drivers may share.
func unitDevice(d device) (string, error) {
	kind := map[string]string{"c": "char", "b": "block"}[d.kind]
	switch {
	case d.major == edits.Any && d.minor == edits.Any:
		return kind + "-*", nil
	case d.major == edits.Any:
		return "", errors.New("systemd has no word for one minor of every major")
	case d.minor == edits.Any:
		return fmt.Sprintf("%s-%d", kind, d.major), nil
	}
	return fmt.Sprintf("/dev/%s/%d:%d", kind, d.major, d.minor), nil
}
