package credentials

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/launcher/image/registry"
)

func basicAuth(user, password string) string {
	return base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
}

func TestFind(t *testing.T) {
	dir := t.TempDir()
	helper := "#!/bin/sh\nread server\ncase $1,$server in\nget,helped.x) echo '{\"Username\":\"h\",\"Secret\":\"s\"}' ;;\nget,token.x) echo '{\"Username\":\"<token>\",\"Secret\":\"t\"}' ;;\n" +
		"*) echo 'credentials not found in native keychain'; exit 1 ;;\nesac\n"
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "docker-credential-own"), []byte(helper), 0o755))
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "docker-credential-sick"), []byte("#!/bin/sh\necho it hurts\nexit 3\n"), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for _, tt := range []struct {
		name, file, image string
		want              Login
		fails             string
	}{
		{"docker hub by its old address", `{"auths":{"https://index.docker.io/v1/":{"auth":"` + basicAuth("u", "p") + `"}}}`, "debian", Login{"u", "p", ""}, ""},
		{"docker hub as podman has it", `{"auths":{"docker.io":{"auth":"` + basicAuth("u", "p:q") + `"}}}`, "debian", Login{"u", "p:q", ""}, ""},
		{"a registry with a port", `{"auths":{"reg.x:5000":{"auth":"` + basicAuth("u", "p") + `"},"reg.x":{"auth":"` + basicAuth("other", "x") + `"}}}`, "reg.x:5000/a", Login{"u", "p", ""}, ""},
		{"the most exact one", `{"auths":{"reg.x":{"auth":"` + basicAuth("all", "x") + `"},"reg.x/team":{"auth":"` + basicAuth("team", "x") + `"}}}`, "reg.x/team/app", Login{"team", "x", ""}, ""},
		{"words", `{"auths":{"reg.x":{"username":"u","password":"p"}}}`, "reg.x/a", Login{"u", "p", ""}, ""},
		{"identity", `{"auths":{"reg.x":{"auth":"` + basicAuth("u", "") + `","identitytoken":"t"}}}`, "reg.x/a", Login{"u", "", "t"}, ""},
		{"another registry", `{"auths":{"reg.x":{"auth":"` + basicAuth("u", "p") + `"}}}`, "reg.y/a", Login{}, ""},
		{"empty, as with a store", `{"auths":{"reg.x":{}}}`, "reg.x/a", Login{}, ""},
		{"store", `{"auths":{"helped.x":{}},"credsStore":"own"}`, "helped.x/a", Login{"h", "s", ""}, ""},
		{"store that knows nothing", `{"credsStore":"own"}`, "reg.x/a", Login{}, ""},
		{"helper for one registry", `{"credHelpers":{"helped.x":"own"},"credsStore":"sick"}`, "helped.x/a", Login{"h", "s", ""}, ""},
		{"helper with a token", `{"credHelpers":{"token.x":"own"}}`, "token.x/a", Login{"", "", "t"}, ""},
		{"sick helper", `{"credsStore":"sick"}`, "reg.x/a", Login{}, "docker-credential-sick get: exit status 3: it hurts"},
		{"helper that is a path", `{"credsStore":"../../bin/x"}`, "reg.x/a", Login{}, "is no name of a credential helper"},
		{"no helper", `{"credsStore":"missing"}`, "reg.x/a", Login{}, "docker-credential-missing"},
		{"no JSON", `{`, "reg.x/a", Login{}, "read credentials"},
		{"no base64", `{"auths":{"reg.x":{"auth":"%"}}}`, "reg.x/a", Login{}, "an entry's auth"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "config.json")
			testutil.Must(t, os.WriteFile(file, []byte(tt.file), 0o600))
			n, err := registry.Parse(tt.image)
			testutil.Must(t, err)
			got, _, err := findIn(t.Context(), []string{"/no/such", file}, n)
			if tt.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tt.fails) {
					t.Errorf("error %v, want one with %q", err, tt.fails)
				}
				return
			}
			if err != nil || got != tt.want {
				t.Errorf("got %+v, %v, want %+v", got, err, tt.want)
			}
		})
	}
}

// TestPasswordInError: a helper that leaves a child with its output is an error, without what it has written.
func TestPasswordInError(t *testing.T) {
	dir := t.TempDir()
	helper := "#!/bin/sh\necho '{\"Username\":\"h\",\"Secret\":\"word\"}'\nsleep 5 &\n"
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "docker-credential-left"), []byte(helper), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	_, err := getFromHelper(t.Context(), "left", "reg.x")
	if err == nil || !strings.Contains(err.Error(), "docker-credential-left get: ") || strings.Contains(err.Error(), "word") {
		t.Errorf("error %v", err)
	}
}
