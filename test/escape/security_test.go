package escape

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/testutil"
)

// TestSecurityPage: each test and attack that docs/security.md names exists, and each attack is
// named.
func TestSecurityPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, m := range regexp.MustCompile("`(attack|test):([^`]+)`").FindAllStringSubmatch(string(page), -1) {
		if m[1] == "attack" {
			named[m[2]] = false
			continue
		}
		folder, name, ok := strings.Cut(m[2], ":")
		if !ok || !testutil.DefinesTest(t, "../..", folder, name) {
			t.Errorf("docs/security.md names the test %s, which isn't there", m[2])
		}
	}
	for _, a := range slices.Concat(attacks(), ownApptainerAttacks()) {
		known := false
		for name := range named {
			if name == a.name || strings.HasSuffix(name, "/") && strings.HasPrefix(a.name, name) {
				known, named[name] = true, true
			}
		}
		if !known {
			t.Errorf("docs/security.md doesn't name the attack %s", a.name)
		}
	}
	for name, found := range named {
		if !found {
			t.Errorf("docs/security.md names the attack %s, which isn't there", name)
		}
	}
}

// TestAttacksAreNamedOnce: no two attacks have the same name.
func TestAttacksAreNamedOnce(t *testing.T) {
	seen := map[string]bool{}
	for _, a := range slices.Concat(attacks(), ownApptainerAttacks()) {
		if seen[a.name] || a.class == "" {
			t.Errorf("attack %q: another has the name, or it has no class", a.name)
		}
		seen[a.name] = true
	}
}
