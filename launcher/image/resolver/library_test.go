package resolver

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/launcher/image/registry"
)

// TestLibrary: an image is asked for by the two calls of the API, and answers are bounded.
func TestLibrary(t *testing.T) {
	const hash = "0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f"
	var answer http.HandlerFunc
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { answer(w, r) }))
	defer server.Close()
	say := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) }
	}
	var asked string
	for _, tt := range []struct {
		name, path string
		answer     http.HandlerFunc
		want       registry.Descriptor
		fails      string
	}{
		{"an image", "e/c/app:1", func(w http.ResponseWriter, r *http.Request) {
			asked = r.RequestURI + " " + r.UserAgent()
			fmt.Fprintf(w, `{"data":{"hash":"sha256.%s","size":7}}`, hash)
		}, registry.Descriptor{Digest: "sha256:" + hash, Size: 7}, ""},
		{"no digest", "app", say(`{"data":{"hash":"sif.1234"}}`), registry.Descriptor{}, `has no digest of its file, but "sif.1234"`},
		{"no JSON", "app", say(`x`), registry.Descriptor{}, "invalid character"},
		{"no such image", "app", http.NotFound, registry.Descriptor{}, "not found in library " + server.URL},
		{"refused", "app", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }, registry.Descriptor{}, "access denied by library"},
		{"broken", "app", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }, registry.Descriptor{}, "says 500"},
	} {
		answer = tt.answer
		l, err := OpenLibrary(registry.Access{Agent: "berth/1"}, server.URL+"/", tt.path, "amd64")
		if err != nil {
			t.Fatal(err)
		}
		got, err := l.Resolve(t.Context())
		if got != tt.want || (err == nil) != (tt.fails == "") || err != nil && (!strings.Contains(err.Error(), tt.fails) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%s: %+v, %v; want %+v, %q", tt.name, got, err, tt.want, tt.fails)
		}
	}
	if asked != "/v1/images/e/c/app:1?arch=amd64 berth/1" {
		t.Errorf("asked for %s", asked)
	}
	l, err := OpenLibrary(registry.Access{}, server.URL, "app", "amd64")
	if err != nil {
		t.Fatal(err)
	}
	for name, handler := range map[string]http.HandlerFunc{
		"with ranges": func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, "", time.Time{}, strings.NewReader("0123456789"))
		},
		"without ranges": say("0123456789"),
	} {
		answer = func(w http.ResponseWriter, r *http.Request) {
			asked = r.RequestURI
			handler(w, r)
		}
		for _, from := range []int64{0, 4, 9} {
			body, err := l.Fetch(t.Context(), registry.Descriptor{}, from)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			data, err := io.ReadAll(body)
			if err := errors.Join(err, body.Close()); err != nil || string(data) != "0123456789"[from:] || asked != "/v1/imagefile/app:latest?arch=amd64" {
				t.Errorf("%s, from %d: %q, %v, by %s", name, from, data, err, asked)
			}
		}
	}
	for _, path := range []string{"", "a/b", "../a/b", "a/b/c/d", "a b", "a?x", "a:1:2", "a/b/c#", "-a", "a\n"} {
		if _, err := OpenLibrary(registry.Access{}, server.URL, path, "amd64"); err == nil {
			t.Errorf("%q is an image", path)
		}
	}
	for _, address := range []string{"", "library.example", "ftp://library.example", "https://", "https://a.example/?x"} {
		if _, err := OpenLibrary(registry.Access{}, address, "a", "amd64"); err == nil {
			t.Errorf("%q is an address", address)
		}
	}
}
