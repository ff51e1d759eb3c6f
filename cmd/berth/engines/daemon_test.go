package engines

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// TestGetFromSocket: an HTTP error and an oversized reply of a daemon are errors.
func TestGetFromSocket(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/info", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"DefaultRuntime":"runc"}`) })
	mux.HandleFunc("/endless", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.Copy(w, endless{}) // until the client closes the connection
	})
	server := &http.Server{Handler: mux} //nolint:gosec // it is the test's own
	go func() { _ = server.Serve(l) }()
	defer server.Close()
	if text, err := getFromSocket(t.Context(), socket, "/info"); err != nil || string(text) != `{"DefaultRuntime":"runc"}` {
		t.Errorf("it says %s, %v", text, err)
	}
	if text, err := getFromSocket(t.Context(), socket, "/endless"); len(text) != maxAnswer {
		t.Errorf("it says %d bytes, %v", len(text), err)
	}
	if _, err := getFromSocket(t.Context(), socket, "/none"); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("what it doesn't know: %v", err)
	}
	if _, err := getFromSocket(t.Context(), socket+"2", "/info"); err == nil {
		t.Error("nobody answers")
	}
}

// endless is a text without an end.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }
