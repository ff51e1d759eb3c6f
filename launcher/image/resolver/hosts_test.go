package resolver

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/launcher/image/registry"
	"github.com/berth-gpu/berth/test/images/fake"
)

// hostDir makes a directory with the configuration of a registry.
func hostDir(t *testing.T, host, file, text string) string {
	t.Helper()
	root := t.TempDir()
	testutil.Must(t, os.Mkdir(filepath.Join(root, host), 0o755))
	testutil.Must(t, os.WriteFile(filepath.Join(root, host, file), []byte(text), 0o644))
	return root
}

func TestMirrors(t *testing.T) {
	mirror, _ := serve(t)
	origin, _ := serve(t)
	const dead = "http://127.0.0.1:1"
	name := parse(t, origin.Host+"/app:1")
	for _, tt := range []struct {
		name, hosts  string
		change       func(*fake.Registry) // of the mirror
		mirror, main bool                 // whether they are asked
		fails        string
	}{
		{"a mirror", `server = "http://` + origin.Host + `"` + "\n" + `[host."http://` + mirror.Host + `"]`, nil, true, false, ""},
		{"in this order", fmt.Sprintf("server = %q\n[host.%q]\n[host.%q]", dead, "http://"+mirror.Host, "http://"+origin.Host), nil, true, false, ""},
		{"a mirror that is down", fmt.Sprintf("server = %q\n[host.%q]", "http://"+origin.Host, dead), nil, false, true, ""},
		{"a mirror without the image", fmt.Sprintf("server = %q\n[host.%q]", "http://"+origin.Host, "http://"+mirror.Host), func(r *fake.Registry) { r.Dir = t.TempDir() }, true, true, ""},
		{"a mirror that fails", fmt.Sprintf("server = %q\n[host.%q]", "http://"+origin.Host, "http://"+mirror.Host), func(r *fake.Registry) { r.Busy, r.Status = 1000, http.StatusInternalServerError }, true, true, ""},
		{"a mirror alone", fmt.Sprintf("server = %q\n[host.%q]", dead, "http://"+mirror.Host), nil, true, false, ""},
		{"none that is up", fmt.Sprintf("server = %q", dead), nil, false, false, "registry 127.0.0.1:1 can't be reached: connect: connection refused"},
		{"a file that can't be read", `server = `, nil, false, false, "hosts.toml: "},
		{"a word that isn't known", `capabilities = ["steal"]`, nil, false, false, "unknown capability steal"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			mirror.Change(func(r *fake.Registry) { r.Dir, r.Busy = origin.Dir, 0 })
			if tt.change != nil {
				mirror.Change(tt.change)
			}
			mirror.Seen()
			origin.Seen()
			access := registry.Access{HostDirs: []string{"/no/such", hostDir(t, strings.ReplaceAll(origin.Host, ":", "_")+"_", "hosts.toml", tt.hosts)}}
			r, err := Open(t.Context(), access, name)
			if err == nil {
				_, err = fetch(t, r)
			}
			if tt.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tt.fails) || strings.Contains(err.Error(), "\n") {
					t.Errorf("error %v, want %q", err, tt.fails)
				}
				return
			}
			testutil.Must(t, err)
			if at, to := len(mirror.Seen()) > 0, len(origin.Seen()) > 0; at != tt.mirror || to != tt.main {
				t.Errorf("asked the mirror: %v, want %v; the registry itself: %v, want %v", at, tt.mirror, to, tt.main)
			}
		})
	}
}

// A registry that isn't this machine's may do without TLS where its hosts.toml says so.
func TestPlainByConfiguration(t *testing.T) {
	plain, _ := serve(t)
	access := registry.Access{HostDirs: []string{hostDir(t, "registry.example", "hosts.toml", `server = "http://registry.example"`)}}
	_, err := fetch(t, connectTo(t, access, "registry.example/app:1", plain.Host))
	testutil.Must(t, err)
}

// The authority of a registry is taken from its directory, and no other's is.
func TestAuthorities(t *testing.T) {
	inner, _ := serve(t)
	server, stranger := httptest.NewTLSServer(inner), httptest.NewUnstartedServer(nil)
	defer server.Close()
	stranger.StartTLS()
	defer stranger.Close()
	address := strings.TrimPrefix(server.URL, "https://")
	for _, tt := range []struct {
		name, file, text string
		is               error
	}{
		{"docker's way", "ca.crt", string(certificateOf(server)), nil},
		{"hosts.toml", "hosts.toml", fmt.Sprintf("server = \"https://example.com\"\nca = %q", writeFile(t, certificateOf(server))), nil},
		{"none", "hosts.toml", `server = "https://example.com"`, registry.ErrCertificate},
		{"skip_verify", "hosts.toml", "server = \"https://example.com\"\nskip_verify = true", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			access := registry.Access{HostDirs: []string{hostDir(t, "example.com", tt.file, tt.text)}} // whose name the certificate has
			_, err := fetch(t, connectTo(t, access, "example.com/app:1", address))
			if !errors.Is(err, tt.is) {
				t.Errorf("error %v, want %v", err, tt.is)
			}
		})
	}
}

func writeFile(t *testing.T, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	testutil.Must(t, os.WriteFile(path, data, 0o644))
	return path
}

// A mirror is asked with its own credentials, and never with those of the registry.
func TestCredentialsOfMirrors(t *testing.T) {
	mirror, _ := serve(t)
	mirror.Change(func(r *fake.Registry) { r.User, r.Password, r.Scheme = "m", "p", "basic" })
	hosts := hostDir(t, "registry.example", "hosts.toml", fmt.Sprintf("server = \"http://127.0.0.1:1\"\n[host.%q]", "http://"+mirror.Host))
	for _, tt := range []struct {
		name, knows string
		is          error
	}{
		{"its own", mirror.Host, nil},
		{"the registry's", "registry.example", registry.ErrDenied},
	} {
		t.Run(tt.name, func(t *testing.T) {
			file := writeFile(t, fmt.Appendf(nil, `{"auths":{%q:{"auth":%q}}}`, tt.knows, base64.StdEncoding.EncodeToString([]byte("m:p"))))
			r := connect(t, registry.Access{Credentials: []registry.CredentialFile{{Path: file}}, HostDirs: []string{hosts}}, "registry.example/app:1")
			if _, err := fetch(t, r); !errors.Is(err, tt.is) {
				t.Errorf("error %v, want %v", err, tt.is)
			}
		})
	}
}

// A registry with TLS can't redirect berth to plain HTTP: no request and no password is sent there.
func TestStaysInTLS(t *testing.T) {
	var plainAsked bool
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		plainAsked = true
		_, _ = w.Write([]byte(`{"token":"x"}`))
	}))
	defer plain.Close()
	for name, answer := range map[string]http.HandlerFunc{
		"redirect": func(w http.ResponseWriter, req *http.Request) {
			http.Redirect(w, req, plain.URL, http.StatusTemporaryRedirect)
		},
		"token": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+plain.URL+`/token"`)
			w.WriteHeader(http.StatusUnauthorized)
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewTLSServer(answer)
			defer server.Close()
			host := strings.TrimPrefix(server.URL, "https://")
			file := writeFile(t, fmt.Appendf(nil, `{"auths":{%q:{"auth":%q}}}`, host, base64.StdEncoding.EncodeToString([]byte("u:p"))))
			_, err := fetch(t, connect(t, registry.Access{Credentials: []registry.CredentialFile{{Path: file}}}, host+"/app:1"))
			if err == nil || plainAsked || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v; asked without TLS: %v", err, plainAsked)
			}
		})
	}
}

// A document that has no end isn't read to it.
func TestEndlessDocuments(t *testing.T) {
	for name, path := range map[string]string{"manifest": "/v2/app/manifests/1", "token": "/token", "refusal": "/v2/app/manifests/1"} {
		t.Run(name, func(t *testing.T) {
			var server *httptest.Server
			server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
				switch {
				case req.URL.Path != path:
					w.Header().Set("WWW-Authenticate", `Bearer realm="`+server.URL+`/token"`)
					w.WriteHeader(http.StatusUnauthorized)
				case name == "refusal":
					w.WriteHeader(http.StatusForbidden)
				}
				if req.URL.Path != path || req.Method == http.MethodHead {
					return
				}
				_, err := w.Write([]byte(`{"token":"`))
				for text := bytes.Repeat([]byte("x"), 1<<20); err == nil; {
					_, err = w.Write(text)
				}
			}))
			defer server.Close()
			_, err := fetch(t, connect(t, registry.Access{}, strings.TrimPrefix(server.URL, "http://")+"/app:1"))
			if want := map[string]error{"refusal": registry.ErrDenied}[name]; !errors.Is(err, cmp.Or(want, errTooLarge)) {
				t.Errorf("error %v", err)
			}
		})
	}
}
