package devices

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/cdi/edits"
)

// writeList makes the exceptions of a cgroup of version 1 equal to the rules.
func writeList(dir string, rules []edits.Rule) error {
	want, err := reduceRules(rules)
	if err != nil {
		return err
	}
	have, err := readList(dir)
	if err != nil {
		return err
	}
	switch {
	case want.all:
		// The kernel doesn't list denials after "allow all", so this is written even if the list
		// already allows all.
		if err := writeChange(dir, "allow", "a"); err != nil {
			return err
		}
	case have.all:
		if err := writeChange(dir, "deny", "a"); err != nil {
			return err
		}
		have = list{}
	}
	if err := have.changeTo(dir, want); err != nil {
		return err
	}
	// Another process may have written meanwhile, and the kernel omits, without an error, devices
	// that a parent has denied meanwhile.
	have, err = readList(dir)
	if err != nil {
		return err
	}
	if d := have.findDifference(want); d != "" {
		return fmt.Errorf("%s differs from what was written", d)
	}
	return nil
}

// changeTo writes all denials before the first allowance.
func (l list) changeTo(dir string, want list) error {
	if want.all {
		return nil
	}
	for _, e := range l.subtract(want) {
		if err := writeChange(dir, "deny", e.String()); err != nil {
			return err
		}
	}
	for _, e := range want.subtract(l) {
		if err := writeChange(dir, "allow", e.String()); err != nil {
			return err
		}
	}
	return nil
}

// writeChange writes one line to devices.allow or devices.deny.
func writeChange(dir, verb, line string) error {
	f, err := os.OpenFile(filepath.Join(dir, "devices."+verb), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("%s %s: %w", verb, line, err)
	}
	return nil
}

func readList(dir string) (list, error) {
	data, err := os.ReadFile(filepath.Join(dir, "devices.list"))
	if err != nil {
		return list{}, err
	}
	l, err := parseList(string(data))
	if err != nil {
		return list{}, fmt.Errorf("read %s: %w", filepath.Join(dir, "devices.list"), err)
	}
	return l, nil
}

// parseList reads what the kernel writes: "c 1:3 rwm", or "a *:* rwm" alone.
func parseList(text string) (l list, err error) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) != 3 {
			return list{}, fmt.Errorf("line %q isn't type, numbers and access", line)
		}
		if f[0] == "a" {
			l.all = true
			continue
		}
		major, minor, _ := strings.Cut(f[1], ":")
		e := entry{device{kind: f[0]}, accessBits(f[2])}
		e.major, err = parseNumber(major)
		if err == nil {
			e.minor, err = parseNumber(minor)
		}
		if err != nil {
			return list{}, fmt.Errorf("line %q: %w", line, err)
		}
		l.addAllowance(e)
	}
	return l, nil
}

func parseNumber(s string) (int64, error) {
	if s == "*" {
		return edits.Any, nil
	}
	return strconv.ParseInt(s, 10, 32)
}
