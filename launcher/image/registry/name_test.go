package registry

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const someDigest = "sha256:0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f"

func TestParse(t *testing.T) {
	for _, tt := range []struct {
		text        string
		want        Name
		full, short string
	}{
		{"debian", Name{"docker.io", "library/debian", "latest", ""}, "docker.io/library/debian:latest", "debian:latest"},
		{"debian:13", Name{"docker.io", "library/debian", "13", ""}, "docker.io/library/debian:13", "debian:13"},
		{"library/debian:13", Name{"docker.io", "library/debian", "13", ""}, "docker.io/library/debian:13", "debian:13"},
		{"docker.io/debian", Name{"docker.io", "library/debian", "latest", ""}, "docker.io/library/debian:latest", "debian:latest"},
		{"index.docker.io/library/debian", Name{"docker.io", "library/debian", "latest", ""}, "docker.io/library/debian:latest", "debian:latest"},
		{"team/app", Name{"docker.io", "team/app", "latest", ""}, "docker.io/team/app:latest", "team/app:latest"},
		{"localhost/app", Name{"localhost", "app", "latest", ""}, "localhost/app:latest", "localhost/app:latest"},
		{"localhost:5000/app:1", Name{"localhost:5000", "app", "1", ""}, "localhost:5000/app:1", "localhost:5000/app:1"},
		{"[::1]:5000/app", Name{"[::1]:5000", "app", "latest", ""}, "[::1]:5000/app:latest", "[::1]:5000/app:latest"},
		{"ghcr.io/a/b/c:v1.2_3-x", Name{"ghcr.io", "a/b/c", "v1.2_3-x", ""}, "ghcr.io/a/b/c:v1.2_3-x", "ghcr.io/a/b/c:v1.2_3-x"},
		{"a__b/c.d/e---f", Name{"docker.io", "a__b/c.d/e---f", "latest", ""}, "docker.io/a__b/c.d/e---f:latest", "a__b/c.d/e---f:latest"},
		{"debian:13@" + someDigest, Name{"docker.io", "library/debian", "", someDigest}, "docker.io/library/debian@" + someDigest, "debian@" + someDigest},
		{"Host/app", Name{"Host", "app", "latest", ""}, "Host/app:latest", "Host/app:latest"},
	} {
		t.Run(tt.text, func(t *testing.T) {
			got, err := Parse(tt.text)
			if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
				t.Fatalf("%v (-want +got):\n%s", err, diff)
			}
			if got.String() != tt.full || got.Short() != tt.short {
				t.Errorf("is %s and %s, want %s and %s", got, got.Short(), tt.full, tt.short)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	for _, text := range []string{
		"", ":", "@", "Debian", "debian:", "debian:.x", "debian:-x", "debian:a b", "debian@sha256:12", "debian@md5:" + strings.Repeat("0", 32),
		"a//b", "/a", "a/", "a..b", "a___b", ".a", "a_", "-a", "a/../b", "host:/a", "host:123456/a", "ho st.x/a", "-host.x/a", "[::1/a",
		"debian:" + strings.Repeat("x", 129), strings.Repeat("a/", 200) + "a", "a\x00b", "a\nb", "a?b=c", "a#b", "user@host.x/a", "a.b/c:x/y:z:w",
		"ü", "host.x:80:90/a", "https://x.y/z",
	} {
		if n, err := Parse(text); err == nil {
			t.Errorf("%q is %+v", text, n)
		} else if strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: more than a line: %v", text, err)
		}
	}
}

// FuzzParse: a parsed name written out parses to itself, and can't escape its place in a URL's path.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"debian:13", "localhost:5000/a/b@" + someDigest, "[::1]:1/x", "a__b--c.d", "x.y/z"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		n, err := Parse(text)
		if err != nil {
			return
		}
		for _, written := range []string{n.String(), n.Short()} {
			if again, err := Parse(written); err != nil || again != n {
				t.Errorf("%q is %+v, and its own %q is %+v, %v", text, n, written, again, err)
			}
		}
		if all := n.Host + n.Repository + n.version()[1:]; strings.ContainsAny(all, " ?#%\\@\"'\x00\n") || strings.Contains(n.Repository, "..") {
			t.Errorf("%q is %+v", text, n)
		}
	})
}

func TestParseHost(t *testing.T) {
	for text, want := range map[string]string{
		"": "docker.io", "docker.io": "docker.io", "https://index.docker.io/v1/": "docker.io", "registry-1.docker.io": "docker.io",
		"registry.example": "registry.example", "https://registry.example/": "registry.example", "http://localhost:5000/v2/": "localhost:5000",
		"[::1]:5000": "[::1]:5000", "localhost": "localhost",
		"registry.example/team": "", "user@registry.example": "", "a b": "", "-x": "", "host:": "", "https://": "", "\x1b[31m": "",
	} {
		if got, err := ParseHost(text); got != want || (err == nil) != (want != "") {
			t.Errorf("%q is %q, %v; want %q", text, got, err, want)
		}
	}
}
