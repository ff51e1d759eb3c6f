package pull

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/images/fake"
)

// A registry that lies about blobs is told in one line, gets no byte of its own into an
// image, and leads berth to no file of the host.
func TestLyingRegistry(t *testing.T) {
	const wrong = "is corrupt: its content has another size or digest"
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
		t.Run(tt.name, func(t *testing.T) {
			honest := fake.Serve(t, busybox)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
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
			if all := h.images(t); len(all) != 0 {
				t.Errorf("images %+v", all)
			}
		})
	}
}
