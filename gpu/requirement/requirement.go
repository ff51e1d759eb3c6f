// Package requirement compares what an image says that it needs of a node, in its
// NVIDIA_REQUIRE_* variables, with the driver and the devices that a container gets.
package requirement

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/spell"
)

// ErrUnmet: an image says by its NVIDIA_REQUIRE_* variables that it doesn't
// work with the node's driver or with the devices it was given, or one of the
// variables can't be read.
var ErrUnmet = errors.New("requirement of the image isn't met")

// Limits on the untrusted text that an error quotes, in bytes.
const (
	maxWord     = 64
	maxVariable = 160
)

// requirementError is ErrUnmet with one line of details.
type requirementError string

func (e requirementError) Error() string { return string(e) }

func (requirementError) Is(target error) bool { return target == ErrUnmet }

// Check compares what an image says that it needs with what there is.
// Each NVIDIA_REQUIRE_* variable of the environment must hold for each leased device,
// but for NVIDIA_REQUIRE_JETPACK, which is about other machines:
//
//	NVIDIA_REQUIRE_CUDA=cuda>=12.4 brand=tesla,driver>=535,driver<536
//
// A space is "or", a comma is "and" and binds tighter. The keys are cuda (the newest
// version that the driver supports), driver, arch (compute capability) and brand,
// the operators =, !=, <, <=, > and >=, for brand = and != alone. Versions are
// compared by their numbers: 9.10 is more than 9.9, and 12 is 12.0. What isn't known
// of the node meets no condition. NVIDIA_DISABLE_REQUIRE=true (or 1) turns all of it off.
//
// The error is an [ErrUnmet] of one line, which says what is there and what
// was asked, or names the constraint that can't be read. Of a variable that the
// environment holds twice, the last counts.
func Check(env []string, inv gpu.Inventory, leased []gpu.Device) error {
	all, err := parseRequirements(env)
	if err != nil {
		return err
	}
	for _, there := range propertiesOf(inv, leased) {
		for _, r := range all {
			if !r.isMetBy(there) {
				return requirementError(fmt.Sprintf("image asks for %s; there is %s", r, there))
			}
		}
	}
	return nil
}

// requirement is one variable: any of its terms, all of a term's constraints.
type requirement struct {
	name, value string
	terms       [][]constraint
}

func (r requirement) String() string { return spell.Quote(r.name+"="+r.value, maxVariable) }

func (r requirement) isMetBy(p properties) bool {
	return len(r.terms) == 0 || slices.ContainsFunc(r.terms, func(all []constraint) bool {
		return !slices.ContainsFunc(all, func(c constraint) bool { return !c.isMetBy(p) })
	})
}

// parseRequirements reads the environment, in its order.
func parseRequirements(env []string) ([]requirement, error) {
	var all []requirement
	known := map[string]bool{} // an image's environment may be megabytes of them
	for _, e := range slices.Backward(env) {
		name, value, _ := strings.Cut(e, "=")
		if known[name] || name == "NVIDIA_REQUIRE_JETPACK" ||
			!strings.HasPrefix(name, "NVIDIA_REQUIRE_") && name != "NVIDIA_DISABLE_REQUIRE" {
			continue
		}
		known[name] = true
		all = append(all, requirement{name: name, value: value})
	}
	slices.Reverse(all)
	isSwitch := func(r requirement) bool { return r.name == "NVIDIA_DISABLE_REQUIRE" }
	if i := slices.IndexFunc(all, isSwitch); i >= 0 {
		if off, err := strconv.ParseBool(strings.TrimSpace(all[i].value)); err == nil && off {
			return nil, nil
		}
		all = slices.DeleteFunc(all, isSwitch)
	}
	for i := range all {
		var err error
		if all[i].terms, err = parseConstraints(all[i].value); err != nil {
			return nil, requirementError(spell.Quote(all[i].name, maxVariable) + ": " + err.Error())
		}
	}
	return all, nil
}

// parseConstraints reads a variable's value. Empty places between spaces and
// commas are no constraints.
func parseConstraints(value string) (terms [][]constraint, err error) {
	for term := range strings.FieldsSeq(value) {
		var all []constraint
		for word := range strings.SplitSeq(term, ",") {
			if word == "" {
				continue
			}
			c, err := parseConstraint(word)
			if err != nil {
				return nil, err
			}
			all = append(all, c)
		}
		if all != nil {
			terms = append(terms, all)
		}
	}
	return terms, nil
}

// constraint is one comparison. Version is set for all keys but brand.
type constraint struct {
	key, op string
	version version
	brand   string
}

func parseConstraint(word string) (constraint, error) {
	i := strings.IndexAny(word, "<>=!")
	if i < 0 {
		return constraint{}, fmt.Errorf("%s isn't a constraint; one is cuda>=12.4", spell.Quote(word, maxWord))
	}
	value := strings.TrimLeft(word[i:], "<>=!")
	c := constraint{key: word[:i], op: word[i : len(word)-len(value)]}
	if !slices.Contains([]string{"=", "!=", "<", "<=", ">", ">="}, c.op) {
		return c, fmt.Errorf("%s: unknown comparison %s; known: =, !=, <, <=, >, >=", spell.Quote(word, maxWord), spell.Quote(c.op, maxWord))
	}
	if c.key == "brand" {
		return brandConstraint(c, word, value)
	}
	if !slices.Contains([]string{"cuda", "driver", "arch"}, c.key) {
		return c, fmt.Errorf("%s: unknown key %s; known: cuda, driver, arch, brand", spell.Quote(word, maxWord), spell.Quote(c.key, maxWord))
	}
	var ok bool
	if c.version, ok = parseVersion(value); !ok {
		return c, fmt.Errorf("%s: %s isn't a version", spell.Quote(word, maxWord), spell.Quote(value, maxWord))
	}
	return c, nil
}

func brandConstraint(c constraint, word, value string) (constraint, error) {
	if c.op != "=" && c.op != "!=" {
		return c, fmt.Errorf("%s: a brand is compared by = or !=", spell.Quote(word, maxWord))
	}
	c.brand = strings.ToLower(value)
	if c.brand == "" || strings.Trim(c.brand, "abcdefghijklmnopqrstuvwxyz0123456789.+-") != "" {
		return c, fmt.Errorf("%s: %s isn't a brand", spell.Quote(word, maxWord), spell.Quote(value, maxWord))
	}
	return c, nil
}

func (c constraint) isMetBy(p properties) bool {
	if c.key == "brand" {
		return slices.Contains(p.brands, c.brand) == (c.op == "=")
	}
	there, ok := parseVersion(p.versionOf(c.key))
	if !ok {
		return false
	}
	order := there.compareTo(c.version)
	switch c.op {
	case "=":
		return order == 0
	case "!=":
		return order != 0
	case "<":
		return order < 0
	case "<=":
		return order <= 0
	case ">":
		return order > 0
	}
	return order >= 0
}
