package pull

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/berth-gpu/berth/test/images/fake"
)

// A registry that lies about blobs is told in one line, gets no byte of its own into an
// image, and leads berth to no file of the host.
func TestLyingRegistry(t *testing.T) {
	const wrong = "another size or digest"
	endless := func(w http.ResponseWriter) {
		zeros := make([]byte, 1<<20)
		for {
			if _, err := w.Write(zeros); err != nil {
				return
			}
		}
	}
	for _, tt := range []struct {
		name  string
		lie   func(w http.ResponseWriter, r *http.Request, honest http.Handler)
		fails string
	}{
		{"other bytes", func(w http.ResponseWriter, r *http.Request, honest http.Handler) {
			answer := httptest.NewRecorder()
			honest.ServeHTTP(answer, r)
			body := answer.Body.Bytes()
			for i := range body {
				body[i] ^= 1
			}
			_, _ = w.Write(body)
		}, wrong},
		{"more bytes", func(w http.ResponseWriter, r *http.Request, honest http.Handler) {
			answer := httptest.NewRecorder()
			honest.ServeHTTP(answer, r)
			_, _ = w.Write(answer.Body.Bytes())
			endless(w)
		}, ""}, // what is right is taken, and no more is read
		{"endless", func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { endless(w) }, wrong},
		{"nothing", func(http.ResponseWriter, *http.Request, http.Handler) {}, "EOF"},
		{"a file of the host", func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.Header().Set("Location", "file:///etc/passwd")
			w.WriteHeader(http.StatusTemporaryRedirect)
		}, "unsupported protocol scheme"},
		{"in a circle", func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
			http.Redirect(w, r, r.URL.String(), http.StatusTemporaryRedirect)
		}, "redirections"},
		{"a page", func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, "<html>please log in</html>")
		}, "EOF"},
	} {
		for blob, what := range []string{"the configuration", "the layer"} { // berth asks for them in this order
			t.Run(tt.name+"/"+what, func(t *testing.T) {
				t.Parallel() // most is waiting between attempts
				honest := fake.Serve(t, busybox)
				var mu sync.Mutex
				var asked []string
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					mu.Lock()
					isBlob := r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/")
					if isBlob && !slices.Contains(asked, r.URL.Path) {
						asked = append(asked, r.URL.Path)
					}
					lies := isBlob && slices.Index(asked, r.URL.Path) == blob
					mu.Unlock()
					if lies {
						tt.lie(w, r, honest)
						return
					}
					honest.ServeHTTP(w, r)
				}))
				t.Cleanup(server.Close)
				h := newHome(t)
				image := strings.TrimPrefix(server.URL, "http://") + "/box:latest"
				if tt.fails == "" {
					if out := h.must(t, "run", image, "echo", "hello").Out; out != "hello\n" {
						t.Errorf("says %q", out)
					}
					return
				}
				h.fails(t, 1, tt.fails, "pull", image)
				if all := h.listImages(t); len(all) != 0 {
					t.Errorf("images %+v", all)
				}
			})
		}
	}
}
