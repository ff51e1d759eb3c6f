package gpu

import "testing"

func TestProcessString(t *testing.T) {
	for name, want := range map[string]string{
		"python":        "python (7, alice)",
		"a\x1b[2Jb\n":   `"a\x1b[2Jb\n" (7, alice)`,
		"":              `"" (7, alice)`,
		"sh (1, root),": `"sh (1, root)," (7, alice)`,
		"\u202eevil":    `"\u202eevil" (7, alice)`,
	} {
		if got := (Process{PID: 7, Name: name, User: "alice"}).String(); got != want {
			t.Errorf("%q: %s, want %s", name, got, want)
		}
	}
	many := make([]Process, 5)
	if got, want := ListProcesses(many), `"" (0, ), "" (0, ), "" (0, ) and 2 more`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
