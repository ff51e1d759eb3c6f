package tasks

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/spell"
)

// Restart says when a task is started again. Its zero value is never.
type Restart struct {
	// Policy is "no" (or ""), "on-failure", "always" or "unless-stopped". Without a
	// daemon that would start tasks after a reboot, the last two are the same.
	Policy string `json:"policy,omitempty"`
	// Max is how often at most, of on-failure; 0 means no limit.
	Max int `json:"max,omitempty"`
}

// ParseRestart reads what docker's --restart takes: no, on-failure[:N], always,
// unless-stopped; and a number alone, which is that of on-failure.
func ParseRestart(s string) (Restart, error) {
	if n, err := strconv.ParseUint(s, 10, 31); err == nil {
		if n == 0 {
			return Restart{}, nil
		}
		return Restart{Policy: "on-failure", Max: int(n)}, nil
	}
	policy, count, counted := strings.Cut(s, ":")
	switch policy {
	case "no", "":
		policy = ""
	case "always", "unless-stopped":
	case "on-failure":
		if !counted {
			return Restart{Policy: policy}, nil
		}
		n, err := strconv.Atoi(count)
		if err != nil || n < 0 {
			return Restart{}, fmt.Errorf("restart policy %q: %q is not a number of restarts", s, count)
		}
		return Restart{Policy: policy, Max: n}, nil
	default:
		return Restart{}, fmt.Errorf("restart policy %q is not known%s: there are no, on-failure[:N], always and unless-stopped", s, spell.Suggestion(policy, "no", "on-failure", "always", "unless-stopped"))
	}
	if counted {
		return Restart{}, fmt.Errorf("restart policy %q: only on-failure takes a number", s)
	}
	return Restart{Policy: policy}, nil
}

// String is what ParseRestart reads.
func (r Restart) String() string {
	switch {
	case r.Policy == "":
		return "no"
	case r.Max > 0:
		return r.Policy + ":" + strconv.Itoa(r.Max)
	}
	return r.Policy
}

// Again says whether a life that ended with that code, after so many restarts, is
// followed by another one.
func (r Restart) Again(code, restarts int) bool {
	switch r.Policy {
	case "always", "unless-stopped":
		return true
	case "on-failure":
		return code != 0 && (r.Max == 0 || restarts < r.Max)
	}
	return false
}
