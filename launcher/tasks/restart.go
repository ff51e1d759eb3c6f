package tasks

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/internal/spell"
)

// Restart is a restart policy. The zero value means no restarts.
type Restart struct {
	// Policy is "no" (or ""), "on-failure", "always" or "unless-stopped". The last two are the same,
	// because there is no daemon that starts tasks after a reboot.
	Policy string `json:"policy,omitempty"`
	// Max bounds the restarts of on-failure; 0 means no limit.
	Max int `json:"max,omitempty"`
}

// ParseRestart parses a value of docker's --restart: no, on-failure[:N], always or unless-stopped. A
// number N alone means on-failure:N.
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

// String returns the form that ParseRestart parses.
func (r Restart) String() string {
	switch {
	case r.Policy == "":
		return "no"
	case r.Max > 0:
		return r.Policy + ":" + strconv.Itoa(r.Max)
	}
	return r.Policy
}

// Allows reports whether the task is restarted after a life that has ended with code. restarts is how
// often the task was restarted before.
func (r Restart) Allows(code, restarts int) bool {
	switch r.Policy {
	case "always", "unless-stopped":
		return true
	case "on-failure":
		return code != 0 && (r.Max == 0 || restarts < r.Max)
	}
	return false
}
