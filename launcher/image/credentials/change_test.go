package credentials

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/launcher/image/registry"
)

// parse returns JSON text as values.
func parse(t *testing.T, text string) (value any) {
	t.Helper()
	testutil.Must(t, json.Unmarshal([]byte(text), &value))
	return value
}

func TestStore(t *testing.T) {
	entry := `{"auth":"` + basicAuth("u", "p") + `"}`
	for _, tt := range []struct{ name, host, before, after, fails string }{
		{"no file", "reg.x:5000", "", `{"auths":{"reg.x:5000":` + entry + `}}`, ""},
		{"docker hub", "docker.io", `{"auths":{"docker.io":{"auth":"x"},"reg.x":{}}}`, `{"auths":{"https://index.docker.io/v1/":` + entry + `,"reg.x":{}}}`, ""},
		{
			"unknown keys", "reg.x", `{"HttpHeaders":{"A":"<&>"},"auths":{"reg.y":{"auth":"x","more":12345678901234567890}},"zoo":[1]}`,
			`{"HttpHeaders":{"A":"<&>"},"auths":{"reg.y":{"auth":"x","more":12345678901234567890},"reg.x":` + entry + `},"zoo":[1]}`, "",
		},
		{"the old one goes", "reg.x", `{"auths":{"https://reg.x/v2/":{"identitytoken":"t"}}}`, `{"auths":{"reg.x":` + entry + `}}`, ""},
		{"empty", "reg.x", " \n", `{"auths":{"reg.x":` + entry + `}}`, ""},
		{"helper", "reg.x", `{"credsStore":"file"}`, `{"credsStore":"file","auths":{"reg.x":{}}}`, ""},
		{"helper of one registry", "reg.x", `{"credHelpers":{"reg.x":"file"}}`, `{"credHelpers":{"reg.x":"file"},"auths":{"reg.x":{}}}`, ""},
		{"helper of another registry", "reg.x", `{"credHelpers":{"reg.y":"none"}}`, `{"credHelpers":{"reg.y":"none"},"auths":{"reg.x":` + entry + `}}`, ""},
		{"sick helper", "reg.x", `{"credsStore":"sick"}`, `{"credsStore":"sick"}`, "docker-credential-sick store: exit status 3: it hurts"},
		{"no JSON", "reg.x", `{`, "", "change credentials "},
		{"no object", "reg.x", `null`, "", "it is no JSON object"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("PATH", writeHelpers(t, dir))
			path := filepath.Join(dir, "new", "config.json")
			if tt.before != "" {
				testutil.Must(t, os.Mkdir(filepath.Dir(path), 0o700))
				testutil.Must(t, os.WriteFile(path, []byte(tt.before), 0o644))
			}
			file := registry.CredentialFile{Path: path}
			helper, err := Store(t.Context(), file, tt.host, Login{User: "u", Secret: "p"})
			if tt.fails != "" {
				after, _ := os.ReadFile(path)
				if err == nil || !strings.Contains(err.Error(), tt.fails) || string(after) != tt.before {
					t.Errorf("error %v, want %q; the file is now %s", err, tt.fails, after)
				}
				return
			}
			testutil.Must(t, err)
			after, err := os.ReadFile(path)
			testutil.Must(t, err)
			if diff := cmp.Diff(parse(t, tt.after), parse(t, string(after))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if strings.Contains(tt.after, "1234567890") && !strings.Contains(string(after), "12345678901234567890") {
				t.Errorf("a number has changed: %s", after)
			}
			if fi, err := os.Stat(path); err != nil || fi.Mode() != 0o600 {
				t.Errorf("mode %v, %v", fi.Mode(), err)
			}
			if strings.Contains(tt.after, "u") && helper != "" && helper != "file" {
				t.Errorf("helper %q", helper)
			}
			name := registry.Name{Host: tt.host}
			if l, at, err := Find(t.Context(), []registry.CredentialFile{file}, name); err != nil || l != (Login{User: "u", Secret: "p"}) || at != path {
				t.Errorf("finds %+v in %s, %v", l, at, err)
			}
			if found, err := Erase(t.Context(), file, tt.host); !found || err != nil {
				t.Errorf("erase: %v, %v", found, err)
			}
			if l, _, err := Find(t.Context(), []registry.CredentialFile{file}, name); err != nil || l != (Login{}) {
				t.Errorf("still finds %+v, %v", l, err)
			}
		})
	}
}

// writeHelpers writes a credential helper that keeps one login in a file, and a sick one.
func writeHelpers(t *testing.T, dir string) (path string) {
	t.Helper()
	script := `#!/bin/sh
kept=` + dir + `/kept
case $1 in
store) cat > $kept ;;
get) test -e $kept && exec cat $kept; echo credentials not found in native keychain; exit 1 ;;
erase) rm $kept ;;
esac
`
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "docker-credential-file"), []byte(script), 0o755))
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "docker-credential-sick"), []byte("#!/bin/sh\necho it hurts\nexit 3\n"), 0o755))
	return dir + ":" + os.Getenv("PATH")
}

// What has no login of a registry stays as it is, byte for byte, or isn't made.
func TestEraseNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	file := registry.CredentialFile{Path: path}
	if found, err := Erase(t.Context(), file, "reg.x"); found || err != nil {
		t.Errorf("no file: %v, %v", found, err)
	}
	const text = `{ "auths":{"reg.y":{}} }`
	testutil.Must(t, os.WriteFile(path, []byte(text), 0o644))
	found, err := Erase(t.Context(), file, "reg.x")
	if after, _ := os.ReadFile(path); found || err != nil || string(after) != text {
		t.Errorf("%v, %v, and the file is %s", found, err, after)
	}
}

// A link to a file of the user's own stays one.
func TestStoreThroughLink(t *testing.T) {
	dir := t.TempDir()
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "target"), []byte(`{"a":1}`), 0o600))
	testutil.Must(t, os.Symlink("target", filepath.Join(dir, "config.json")))
	_, err := Store(t.Context(), registry.CredentialFile{Path: filepath.Join(dir, "config.json")}, "reg.x", Login{User: "u", Secret: "p"})
	testutil.Must(t, err)
	to, err := os.Readlink(filepath.Join(dir, "config.json"))
	if data, _ := os.ReadFile(filepath.Join(dir, "target")); to != "target" || err != nil || !strings.Contains(string(data), "reg.x") {
		t.Errorf("the link is %q, %v, and its target %s", to, err, data)
	}
}

// Logins at the same time don't undo each other.
func TestStoreAtOnce(t *testing.T) {
	file := registry.CredentialFile{Path: filepath.Join(t.TempDir(), "config.json")}
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			if _, err := Store(t.Context(), file, fmt.Sprintf("reg%d.x", i), Login{User: "u", Secret: "p"}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	var kept credentialsFile
	data, err := os.ReadFile(file.Path)
	testutil.Must(t, err)
	testutil.Must(t, json.Unmarshal(data, &kept))
	if len(kept.Auths) != 20 {
		t.Errorf("%d of 20 logins are kept", len(kept.Auths))
	}
}
