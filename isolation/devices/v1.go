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

// writeList makes the exceptions of a cgroup of version 1 be the rules.
func writeList(dir string, rules []edits.Rule) error {
	want, err := reduce(rules)
	if err != nil {
		return err
	}
	have, err := readList(dir)
	if err != nil {
		return err
	}
	switch {
	case want.all:
		// What "all" excludes isn't listed, so this is written in any case.
		if err := change(dir, "allow", "a"); err != nil {
			return err
		}
	case have.all:
		if err := change(dir, "deny", "a"); err != nil {
			return err
		}
		have = list{}
	}
	if err := have.become(dir, want); err != nil {
		return err
	}
	// Somebody else may have written, and the kernel leaves out without an error what
	// a parent denied meanwhile.
	have, err = readList(dir)
	if err != nil {
		return err
	}
	if d := have.difference(want); d != "" {
		return fmt.Errorf("%s isn't as it was set", d)
	}
	return nil
}

// become takes away before it gives.
func (l list) become(dir string, want list) error {
	if want.all {
		return nil
	}
	for _, e := range l.without(want) {
		if err := change(dir, "deny", e.String()); err != nil {
			return err
		}
	}
	for _, e := range want.without(l) {
		if err := change(dir, "allow", e.String()); err != nil {
			return err
		}
	}
	return nil
}

// change writes one line to devices.allow or devices.deny.
func change(dir, verb, line string) error {
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
		e := entryOf{device{kind: f[0]}, bits(f[2])}
		e.major, err = number(major)
		if err == nil {
			e.minor, err = number(minor)
		}
		if err != nil {
			return list{}, fmt.Errorf("line %q: %w", line, err)
		}
		l.allow(e)
	}
	return l, nil
}

func number(s string) (int64, error) {
	if s == "*" {
		return edits.Any, nil
	}
	return strconv.ParseInt(s, 10, 32)
}
