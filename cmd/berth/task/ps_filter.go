package task

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/internal/spell"
	"github.com/berth-gpu/berth/launcher/image"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// filters are the values of filters by kind.
type filters map[string][]string

func parseFilters(words []string) (filters, error) {
	kinds := []string{"id", "name", "image", "label", "status", "exited", "gpu"}
	all := filters{}
	for _, word := range words {
		kind, value, ok := strings.Cut(word, "=")
		if kind == "ancestor" {
			kind = "image"
		}
		switch {
		case !slices.Contains(kinds, kind):
			return nil, verb.UnknownFilter(kind, kinds)
		case !ok:
			return nil, fmt.Errorf("filter %q has no value: %s=VALUE", kind, kind)
		case kind == "status" && !slices.Contains(stateNames(), value):
			return nil, fmt.Errorf("there is no status %q%s: %s are known", value, spell.Suggestion(value, stateNames()...), strings.Join(stateNames(), ", "))
		case kind == "exited":
			if _, err := strconv.Atoi(value); err != nil {
				return nil, fmt.Errorf("filter exited=%s: not an exit code", value)
			}
		case kind == "name":
			if _, err := regexp.Compile(value); err != nil {
				return nil, fmt.Errorf("filter name=%s: %w", value, err)
			}
		}
		all[kind] = append(all[kind], value)
	}
	return all, nil
}

func stateNames() (words []string) {
	for _, s := range []tasks.State{tasks.Created, tasks.Waiting, tasks.Running, tasks.Restarting, tasks.Stopping, tasks.Exited, tasks.Lost, tasks.Broken} {
		words = append(words, string(s))
	}
	return words
}

// matches reports whether a task matches a value of each kind, and all labels.
func (f filters) matches(t listed) bool {
	for kind, values := range f {
		if kind == "label" {
			if slices.ContainsFunc(values, func(v string) bool { return !matchesFilter(t, kind, v) }) {
				return false
			}
			continue
		}
		if !slices.ContainsFunc(values, func(v string) bool { return matchesFilter(t, kind, v) }) {
			return false
		}
	}
	return true
}

func matchesFilter(t listed, kind, value string) bool {
	switch kind {
	case "id":
		return strings.HasPrefix(t.ID, value)
	case "name":
		pattern, err := regexp.Compile(value)
		return err == nil && (pattern.MatchString(t.Name) || pattern.MatchString("/"+t.Name)) // docker's names begin with a slash
	case "image":
		return strings.Contains(t.Image, value)
	case "status":
		return string(t.State) == value
	case "exited":
		return t.State == tasks.Exited && strconv.Itoa(t.Code) == value
	case "gpu":
		return slices.Contains(t.GPUs, value) || slices.Contains(t.Devices, value)
	}
	return image.ParseLabel(value).Matches(t.Labels)
}
