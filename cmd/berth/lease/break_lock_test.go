package lease

import "testing"

// TestIsOwnProgram: berth repair --break-lock ends only programs in the two directories of berth's
// packages.
func TestIsOwnProgram(t *testing.T) {
	for _, tt := range []struct {
		self, program string
		want          bool
	}{
		{"/usr/bin/berth", "/usr/bin/berth-runtime", true},
		{"/usr/bin/berth", "/usr/lib/berth/berth-monitor", true},
		{"/usr/bin/berth (deleted)", "/usr/bin/berth", true},
		{"/usr/bin/berth", "/usr/bin/flock", false},
		{"/usr/bin/berth", "/tmp/berth", false},
	} {
		if got := isOwnProgram(tt.self, tt.program); got != tt.want {
			t.Errorf("isOwnProgram(%q, %q) = %v", tt.self, tt.program, got)
		}
	}
}
