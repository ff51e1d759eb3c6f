// Package fake is a registry for tests, which serves an OCI image layout and can be
// told what to do wrong. Real registries are what test/images asks; they can't be told.
package fake

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	ispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Registry serves what is in Dir, whatever the repository is called. Its fields may
// be changed between requests, with Change.
type Registry struct {
	Dir string // an OCI layout
	URL string
	// Host is what an image's name begins with.
	Host string

	// CutAfter ends answers with a blob after so many bytes; 0 doesn't. Cuts is how many
	// of them, 0 for all.
	CutAfter int64
	Cuts     int
	// NoRanges: blobs begin at their beginning, whatever was asked.
	NoRanges bool
	// Corrupt is how many answers with a blob have a wrong byte.
	Corrupt int
	// Busy is how many requests are answered with Status first.
	Busy, Status int
	// User and Password are asked for in the way of Scheme: basic, or bearer (by
	// default) for a token.
	User, Password, Scheme string
	// Elsewhere: blobs are redirected to another host.
	Elsewhere string
	// Hold, if it isn't nil, is waited for in the middle of each blob but small ones.
	Hold chan struct{}

	mu   sync.Mutex
	seen []string
}

// Serve starts a registry with a layout's images, without TLS, until the test ends.
func Serve(t testing.TB, dir string) *Registry {
	t.Helper()
	r := &Registry{Dir: dir}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	r.URL, r.Host = server.URL, strings.TrimPrefix(server.URL, "http://")
	return r
}

// Change edits the registry.
func (r *Registry) Change(edit func(*Registry)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	edit(r)
}

// Seen lists the requests so far as "PATH RANGE", and forgets them.
func (r *Registry) Seen() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := r.seen
	r.seen = nil
	return seen
}

// ServeHTTP answers one request.
func (r *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	r.seen = append(r.seen, strings.TrimSpace(req.URL.Path+" "+req.Header.Get("Range")))
	busy := r.Busy > 0
	if busy {
		r.Busy--
	}
	status := r.Status
	r.mu.Unlock()
	switch {
	case busy:
		w.WriteHeader(status)
	case req.URL.Path == "/token":
		r.token(w, req)
	case !r.allowed(req):
		r.challenge(w)
	case req.URL.Path == "/v2/":
	default:
		r.serve(w, req)
	}
}

const token = "granted"

func (r *Registry) token(w http.ResponseWriter, req *http.Request) {
	user, password, _ := req.BasicAuth()
	if req.Method == http.MethodPost {
		user, password = r.User, req.FormValue("refresh_token")
	}
	if user != r.User || password != r.Password {
		refuse(w, http.StatusUnauthorized, "UNAUTHORIZED", "incorrect username or password")
		return
	}
	fmt.Fprintf(w, `{"token": %q}`, token)
}

func (r *Registry) allowed(req *http.Request) bool {
	if r.User == "" {
		return true
	}
	user, password, basic := req.BasicAuth()
	if r.Scheme == "basic" {
		return basic && user == r.User && password == r.Password
	}
	return req.Header.Get("Authorization") == "Bearer "+token
}

func (r *Registry) challenge(w http.ResponseWriter) {
	how := `Basic realm="fake"`
	if r.Scheme != "basic" {
		how = fmt.Sprintf(`Bearer realm="%s/token",service="fake"`, r.URL)
	}
	w.Header().Set("WWW-Authenticate", how)
	refuse(w, http.StatusUnauthorized, "UNAUTHORIZED", "authentication required")
}

func refuse(w http.ResponseWriter, status int, code, text string) {
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"errors": []map[string]string{{"code": code, "message": text}}})
}

func (r *Registry) serve(w http.ResponseWriter, req *http.Request) {
	parts := strings.Split(req.URL.Path, "/")
	kind, name := parts[len(parts)-2], parts[len(parts)-1]
	switch kind {
	case "manifests":
		r.manifest(w, name)
	case "blobs":
		if r.Elsewhere != "" {
			http.Redirect(w, req, r.Elsewhere+req.URL.Path, http.StatusTemporaryRedirect)
			return
		}
		r.blob(w, req, name)
	default:
		refuse(w, http.StatusNotFound, "UNSUPPORTED", "no such thing")
	}
}

func (r *Registry) manifest(w http.ResponseWriter, name string) {
	var index ispec.Index
	data, err := os.ReadFile(filepath.Join(r.Dir, "index.json"))
	if err == nil {
		err = json.Unmarshal(data, &index)
	}
	digest, mediaType := name, ispec.MediaTypeImageManifest
	for _, d := range index.Manifests {
		if d.Annotations[ispec.AnnotationRefName] == name || d.Digest.String() == name {
			digest, mediaType = d.Digest.String(), d.MediaType
		}
	}
	if err == nil && strings.Contains(digest, ":") {
		data, err = r.content(digest)
	} else if err == nil {
		err = os.ErrNotExist
	}
	if err != nil {
		refuse(w, http.StatusNotFound, "MANIFEST_UNKNOWN", "manifest unknown")
		return
	}
	w.Header().Set("Content-Type", mediaType)
	_, _ = w.Write(data)
}

func (r *Registry) content(digest string) ([]byte, error) {
	return os.ReadFile(filepath.Join(r.Dir, "blobs", strings.Replace(digest, ":", "/", 1)))
}

func (r *Registry) blob(w http.ResponseWriter, req *http.Request, digest string) {
	data, err := r.content(digest)
	if err != nil {
		refuse(w, http.StatusNotFound, "BLOB_UNKNOWN", "blob unknown to registry")
		return
	}
	from := int64(0)
	r.mu.Lock()
	cut, hold := r.CutAfter, r.Hold
	if first, ok := strings.CutPrefix(req.Header.Get("Range"), "bytes="); ok && !r.NoRanges {
		from, _ = strconv.ParseInt(strings.TrimSuffix(first, "-"), 10, 64)
	}
	if cut > 0 && cut < int64(len(data))-from && r.Cuts > 0 {
		if r.Cuts--; r.Cuts == 0 {
			r.CutAfter = 0
		}
	}
	wrong := r.Corrupt > 0 && !json.Valid(data)
	if wrong {
		r.Corrupt--
	}
	r.mu.Unlock()
	if wrong {
		data = append([]byte(nil), data...)
		data[len(data)/2] ^= 0x55
	}
	if from > 0 {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(data)-1, len(data)))
	}
	rest := data[min(from, int64(len(data))):]
	w.Header().Set("Content-Length", strconv.Itoa(len(rest)))
	if from > 0 {
		w.WriteHeader(http.StatusPartialContent)
	}
	send(w, rest, cut, hold)
}

func send(w http.ResponseWriter, rest []byte, cut int64, hold chan struct{}) {
	if hold != nil && len(rest) > 4<<10 {
		half := len(rest) / 2
		_, _ = w.Write(rest[:half])
		w.(http.Flusher).Flush()
		<-hold
		rest = rest[half:]
	}
	if cut > 0 && cut < int64(len(rest)) {
		_, _ = w.Write(rest[:cut])
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	_, _ = w.Write(rest)
}

// Digest is that of data.
func Digest(data []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(data)) }
