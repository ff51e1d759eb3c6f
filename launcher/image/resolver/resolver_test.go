package resolver

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	ispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/launcher/image/registry"
	"github.com/berth-gpu/berth/test/image/oci"
	"github.com/berth-gpu/berth/test/images/fake"
)

// serve returns a registry with one image, tagged "1", and its layer.
func serve(t *testing.T) (r *fake.Registry, layer registry.Descriptor) {
	t.Helper()
	dir := t.TempDir()
	testutil.Must(t, oci.Write(dir, oci.Image{Tag: "1", Layers: []oci.Layer{{Tar: oci.Tar(oci.File{Name: "file", Body: strings.Repeat("content", 10000)})}}}))
	var index ispec.Index
	data, err := os.ReadFile(filepath.Join(dir, "index.json"))
	testutil.Must(t, err)
	testutil.Must(t, json.Unmarshal(data, &index))
	var m ispec.Manifest
	data, err = os.ReadFile(filepath.Join(dir, "blobs/sha256", index.Manifests[0].Digest.Encoded()))
	testutil.Must(t, err)
	testutil.Must(t, json.Unmarshal(data, &m))
	return fake.Serve(t, dir), registry.Descriptor{MediaType: m.Layers[0].MediaType, Digest: m.Layers[0].Digest.String(), Size: m.Layers[0].Size}
}

func basicAuth(user, password string) string {
	return base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
}

func connect(t *testing.T, a registry.Access, text string) *Repository {
	t.Helper()
	r, err := openBounded(t.Context(), a, parse(t, text), maxSilence)
	testutil.Must(t, err)
	return r
}

func parse(t *testing.T, text string) registry.Name {
	t.Helper()
	n, err := registry.Parse(text)
	testutil.Must(t, err)
	return n
}

// fetch reads the manifest that a name stands for.
func fetch(t *testing.T, r *Repository) ([]byte, error) {
	t.Helper()
	d, err := r.Resolve(t.Context())
	if err != nil {
		return nil, err
	}
	return read(t, r, d, 0)
}

func read(t *testing.T, r *Repository, d registry.Descriptor, from int64) ([]byte, error) {
	t.Helper()
	body, err := r.Fetch(t.Context(), d, from)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(body)
	return data, errors.Join(err, body.Close())
}

func TestManifest(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*fake.Registry)
		login  string // of the credentials' file
		image  string
		is     error
		says   string
	}{
		{name: "there", image: "app:1"},
		{name: "no such tag", image: "app:2", is: registry.ErrNotFound, says: "not found in registry 127.0.0.1:"},
		{name: "by digest", image: "app@sha256:" + strings.Repeat("0f", 32), is: registry.ErrNotFound},
		{name: "token", change: func(r *fake.Registry) { r.User, r.Password = "u", "p" }, login: "u:p", image: "app:1"},
		{name: "basic", change: func(r *fake.Registry) { r.User, r.Password, r.Scheme = "u", "p", "basic" }, login: "u:p", image: "app:1"},
		{name: "nobody", change: func(r *fake.Registry) { r.User, r.Password = "u", "p" }, image: "app:1", is: registry.ErrDenied, says: "incorrect username or password"},
		{name: "nobody, basic", change: func(r *fake.Registry) { r.User, r.Password, r.Scheme = "u", "p", "basic" }, image: "app:1", is: registry.ErrDenied, says: "asks for other credentials"},
		{name: "wrong password", change: func(r *fake.Registry) { r.User, r.Password, r.Scheme = "u", "p", "basic" }, login: "u:x", image: "app:1", is: registry.ErrDenied},
		{name: "busy for a while", change: func(r *fake.Registry) { r.Busy, r.Status = 2, http.StatusServiceUnavailable }, image: "app:1"},
		{name: "broken for good", change: func(r *fake.Registry) { r.Busy, r.Status = 1, http.StatusNotImplemented }, image: "app:1", says: "501"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, _ := serve(t)
			if tt.change != nil {
				r.Change(tt.change)
			}
			user, password, _ := strings.Cut(tt.login, ":")
			file := filepath.Join(t.TempDir(), "config.json")
			testutil.Must(t, os.WriteFile(file, []byte(`{"auths":{"`+r.Host+`":{"auth":"`+basicAuth(user, password)+`"}}}`), 0o600))
			a := registry.Access{}
			if tt.login != "" {
				a.Credentials = []registry.CredentialFile{{Path: file}}
			}
			_, err := fetch(t, connect(t, a, r.Host+"/"+tt.image))
			if tt.is == nil && tt.says == "" {
				testutil.Must(t, err)
				return
			}
			if err == nil || tt.is != nil && !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want %v with %q", err, tt.is, tt.says)
			}
		})
	}
}

func TestBlob(t *testing.T) {
	r, layer := serve(t)
	repository := connect(t, registry.Access{}, r.Host+"/app:1")
	all, err := read(t, repository, layer, 0)
	testutil.Must(t, err)
	for _, ranges := range []bool{true, false} {
		r.Change(func(r *fake.Registry) { r.NoRanges = !ranges })
		for _, from := range []int64{1, 1000, layer.Size - 1} {
			if rest, err := read(t, repository, layer, from); err != nil || !bytes.Equal(rest, all[from:]) {
				t.Errorf("ranges %v, from %d: %d bytes, %v", ranges, from, len(rest), err)
			}
		}
	}
	r.Change(func(r *fake.Registry) { r.CutAfter = 100 })
	if part, err := read(t, repository, layer, 0); err == nil || !bytes.Equal(part, all[:len(part)]) {
		t.Errorf("%d bytes of an answer that was cut off, %v", len(part), err)
	}
}

// A registry that falls silent in the middle is given up.
func TestBlobSilence(t *testing.T) {
	r, layer := serve(t)
	hold := make(chan struct{})
	defer close(hold)
	r.Change(func(r *fake.Registry) { r.Hold = hold })
	repository, err := openBounded(t.Context(), registry.Access{}, parse(t, r.Host+"/app:1"), 50*time.Millisecond)
	testutil.Must(t, err)
	if _, err := read(t, repository, layer, 0); !errors.Is(err, errSilent) {
		t.Errorf("error %v, want %v", err, errSilent)
	}
}

// Blobs may lie elsewhere; the registry's credentials don't go there.
func TestBlobElsewhere(t *testing.T) {
	r, layer := serve(t)
	leaked := make(chan string, 10)
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		leaked <- req.Header.Get("Authorization")
		_, _ = w.Write([]byte("blob"))
	}))
	defer elsewhere.Close()
	r.Change(func(r *fake.Registry) {
		r.User, r.Password, r.Scheme = "u", "p", "basic"
		r.Elsewhere = strings.Replace(elsewhere.URL, "127.0.0.1", "localhost", 1)
	})
	file := filepath.Join(t.TempDir(), "config.json")
	testutil.Must(t, os.WriteFile(file, []byte(`{"auths":{"`+r.Host+`":{"auth":"`+basicAuth("u", "p")+`"}}}`), 0o600))
	data, err := read(t, connect(t, registry.Access{Credentials: []registry.CredentialFile{{Path: file}}}, r.Host+"/app:1"), layer, 0)
	testutil.Must(t, err)
	if got := <-leaked; got != "" || string(data) != "blob" {
		t.Errorf("elsewhere was told %q, and gave %q", got, data)
	}
}

func TestTLS(t *testing.T) {
	inner, _ := serve(t)
	server := httptest.NewTLSServer(inner)
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "https://")
	_, err := fetch(t, connect(t, registry.Access{}, host+"/app:1"))
	testutil.Must(t, err) // this machine's own is trusted, as docker does
	certs := t.TempDir()
	testutil.Must(t, os.Mkdir(filepath.Join(certs, host), 0o755))
	testutil.Must(t, os.WriteFile(filepath.Join(certs, host, "ca.crt"), certificateOf(server), 0o644))
	_, err = fetch(t, connect(t, registry.Access{HostDirs: []string{"/no/such", certs}}, host+"/app:1"))
	testutil.Must(t, err)
	testutil.Must(t, os.WriteFile(filepath.Join(certs, host, "broken.crt"), []byte("x"), 0o644))
	if _, err := Open(t.Context(), registry.Access{HostDirs: []string{certs}}, parse(t, host+"/app")); err == nil {
		t.Error("a file without a certificate was taken for one")
	}
}

func certificateOf(server *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
}

// A registry that isn't this machine has to speak TLS, with a certificate that can be
// trusted; what is said of it is a line.
func TestOthersNeedTLS(t *testing.T) {
	plain, _ := serve(t)
	sealed := httptest.NewTLSServer(plain)
	defer sealed.Close()
	for _, tt := range []struct {
		name, to string
		is       error
	}{
		{"plain", plain.Host, registry.ErrPlain},
		{"unknown authority", strings.TrimPrefix(sealed.URL, "https://"), registry.ErrCertificate},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := fetch(t, connectTo(t, registry.Access{}, "registry.example/app:1", tt.to))
			if !errors.Is(err, tt.is) || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "registry.example") {
				t.Errorf("error %v, want %v", err, tt.is)
			}
		})
	}
	if _, err := fetch(t, connect(t, registry.Access{}, "registry.invalid/app:1")); !errors.Is(err, registry.ErrUnknownHost) {
		t.Errorf("error %v, want %v", err, registry.ErrUnknownHost)
	}
}

// connectTo opens a repository of which every host is a server of this test.
func connectTo(t *testing.T, a registry.Access, text, server string) *Repository {
	t.Helper()
	n := parse(t, text)
	hosts, err := configureHosts(t.Context(), a, n, maxSilence)
	testutil.Must(t, err)
	for _, h := range hosts {
		h.Client.Transport.(transport).RoundTripper.(*http.Transport).DialContext = dialTo(server)
	}
	r, err := newRepository(t.Context(), a, n, hosts)
	testutil.Must(t, err)
	return r
}

// What a registry says reaches a terminal without control characters.
func TestPrintable(t *testing.T) {
	if got := makePrintable("a\x1b[31m\nb\x00" + strings.Repeat("x", 300)); strings.ContainsAny(got, "\x1b\n\x00") || len(got) > 210 {
		t.Errorf("%q", got)
	}
}

func dialTo(host string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, host)
	}
}

// A request ends too when the registry falls silent within any small document, or sends one without
// an end.
func TestDocumentSilence(t *testing.T) {
	for name, answer := range map[string]func(w http.ResponseWriter, path string) bool{
		"manifest": func(http.ResponseWriter, string) bool { return true },
		"refusal": func(w http.ResponseWriter, _ string) bool {
			w.WriteHeader(http.StatusForbidden)
			return true
		},
		"token": func(w http.ResponseWriter, path string) bool {
			if path != "/token" {
				w.Header().Set("WWW-Authenticate", `Bearer realm="REALM/token"`)
				w.WriteHeader(http.StatusUnauthorized)
			}
			return path == "/token"
		},
	} {
		for _, drips := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, drips %v", name, drips), func(t *testing.T) {
				var server *httptest.Server
				server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
					record := httptest.NewRecorder()
					falls := answer(record, req.URL.Path) && req.Method != http.MethodHead // which has no body
					for key, values := range record.Header() {
						w.Header()[key] = []string{strings.ReplaceAll(values[0], "REALM", server.URL)}
					}
					w.WriteHeader(record.Code)
					for falls {
						_, _ = w.Write([]byte(" "))
						_ = http.NewResponseController(w).Flush()
						select {
						case <-req.Context().Done():
							return
						case <-time.After(map[bool]time.Duration{false: time.Hour, true: time.Millisecond}[drips]):
						}
					}
				}))
				defer server.Close()
				name := strings.TrimPrefix(server.URL, "http://") + "/app:1"
				repository, err := openBounded(t.Context(), registry.Access{}, parse(t, name), 50*time.Millisecond)
				testutil.Must(t, err)
				_, err = fetch(t, repository)
				if err == nil || t.Context().Err() != nil {
					t.Errorf("error %v", err)
				}
			})
		}
	}
}

// Another port is another server, which the credentials aren't for.
func TestAnotherPort(t *testing.T) {
	r, layer := serve(t)
	leaked := make(chan string, 10)
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		leaked <- req.Header.Get("Authorization")
		_, _ = w.Write([]byte("blob"))
	}))
	defer elsewhere.Close()
	r.Change(func(r *fake.Registry) {
		r.User, r.Password, r.Scheme, r.Elsewhere = "u", "p", "basic", elsewhere.URL
	})
	file := filepath.Join(t.TempDir(), "config.json")
	testutil.Must(t, os.WriteFile(file, []byte(`{"auths":{"`+r.Host+`":{"auth":"`+basicAuth("u", "p")+`"}}}`), 0o600))
	_, err := read(t, connect(t, registry.Access{Credentials: []registry.CredentialFile{{Path: file}}}, r.Host+"/app:1"), layer, 0)
	testutil.Must(t, err)
	if got := <-leaked; got != "" {
		t.Errorf("it was told %q", got)
	}
}

// Some servers without TLS close the connection on a TLS handshake.
func TestHangsUpOnTLS(t *testing.T) {
	r, _ := serve(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testutil.Must(t, err)
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go forward(c, r.Host)
		}
	}()
	if _, err := fetch(t, connect(t, registry.Access{}, l.Addr().String()+"/app:1")); err != nil {
		t.Error(err)
	}
}

// forward hands a connection on, but for one that begins with TLS.
func forward(c net.Conn, to string) {
	defer c.Close()
	first := make([]byte, 1)
	if _, err := io.ReadFull(c, first); err != nil || first[0] == 0x16 {
		return
	}
	server, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer server.Close()
	_, _ = server.Write(first)
	go func() { _, _ = io.Copy(server, c) }()
	_, _ = io.Copy(c, server)
}
