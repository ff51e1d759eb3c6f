// Package rendezvous serves the key-value store in which the ranks of a Horovod job with
// the gloo controller find each other: PUT, GET and DELETE of /SCOPE/KEY by HTTP.
//
// It behaves like Horovod's own server. A missing key is answered with 404, and the reader asks again. A
// DELETE in an announced scope means that one rank has finished there; the keys are removed when all
// ranks have finished, because the last one may still read keys of the first. In any other scope a
// DELETE removes the key.
//
// Every client that reaches the listener may read and write everything; the boundary is the gang's
// network namespace. Limits protect the host's memory from a faulty rank. Nothing is stored on disk.
// Elastic jobs are not supported.
package rendezvous

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"time"
)

// Limits for one gang.
const (
	MaxName        = 256      // bytes of a scope's or key's name
	MaxValue       = 1 << 20  // bytes of one value: addresses for some thousand ranks
	MaxBytes       = 32 << 20 // of all values and names
	MaxKeys        = 1 << 15
	MaxConnections = 1024
	maxUploads     = 16 // values that are received concurrently
	requestTimeout = 10 * time.Second
)

// Serve serves the store until the context ends, and closes the listener. scopes are the announced
// scopes, with the number of ranks that meet in each.
func Serve(ctx context.Context, l net.Listener, scopes map[string]int) error {
	server := &http.Server{
		Handler:     New(scopes),
		ReadTimeout: requestTimeout, WriteTimeout: requestTimeout, IdleTimeout: requestTimeout,
		MaxHeaderBytes: 8 << 10,
		ErrorLog:       log.New(io.Discard, "", 0), // clients' mistakes
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() }) // server.Serve then returns ErrServerClosed
	defer stop()
	if err := server.Serve(&limitedListener{l, make(chan struct{}, MaxConnections)}); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Handler is the HTTP handler of [Serve].
type Handler struct {
	store   store
	uploads chan struct{}
}

// New returns a handler with an empty store. scopes are the announced scopes.
func New(scopes map[string]int) *Handler {
	return &Handler{newStore(scopes), make(chan struct{}, maxUploads)}
}

// ServeHTTP handles a request for /SCOPE/KEY. Like Horovod's server, it doesn't decode the names.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(r.RequestURI, "/")
	if len(parts) != 3 || parts[0] != "" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	n := name{parts[1], parts[2]}
	if len(n.scope) > MaxName || len(n.key) > MaxName {
		w.WriteHeader(http.StatusRequestURITooLong)
		return
	}
	switch r.Method {
	case http.MethodGet:
		h.serveGet(w, n)
	case http.MethodPut:
		w.WriteHeader(h.servePut(w, r, n))
	case http.MethodDelete:
		h.store.finishScope(n)
	default:
		w.WriteHeader(http.StatusMethodNotAllowed)
	}
}

func (h *Handler) serveGet(w http.ResponseWriter, n name) {
	value, ok := h.store.getValue(n)
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	_, _ = w.Write(value) // an error means that the client has disconnected
}

// servePut stores a value and returns the HTTP status. Values that are being received don't count
// towards MaxBytes, so their number is bounded by maxUploads.
func (h *Handler) servePut(w http.ResponseWriter, r *http.Request, n name) int {
	select {
	case h.uploads <- struct{}{}:
		defer func() { <-h.uploads }()
	case <-r.Context().Done():
		return http.StatusRequestTimeout
	}
	value, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxValue))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return http.StatusRequestEntityTooLarge
	case err != nil:
		return http.StatusRequestTimeout
	case !h.store.putValue(n, value):
		return http.StatusInsufficientStorage
	}
	return http.StatusOK
}

// limitedListener bounds the number of open connections by its slots.
type limitedListener struct {
	net.Listener
	slots chan struct{}
}

func (l *limitedListener) Accept() (net.Conn, error) {
	l.slots <- struct{}{}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &limitedConn{Conn: c, free: func() { <-l.slots }}, nil
}
