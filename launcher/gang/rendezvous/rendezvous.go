// Package rendezvous serves the key-value store in which the ranks of a Horovod job with
// the gloo controller find each other: PUT, GET and DELETE of /SCOPE/KEY by HTTP.
//
// It keeps to what Horovod's own server does. A key that isn't there is answered with 404,
// and its reader asks again. A DELETE in a scope that was announced says that one rank has
// finished there; the keys go when all have, for the last may still have to read the
// first's. In any other scope a DELETE takes away the one key.
//
// Whoever reaches the listener may read and write everything: the gang's own network
// namespace is the boundary. The limits keep a wild rank from filling the host's memory, and
// nothing survives the process. Elastic jobs, which need a server that decides things,
// have none here.
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

// What one gang may take up.
const (
	MaxName        = 256      // bytes of a scope's or key's name
	MaxValue       = 1 << 20  // bytes of one value: addresses for some thousand ranks
	MaxBytes       = 32 << 20 // of all values and names
	MaxKeys        = 1 << 15
	MaxConnections = 1024
	maxUploads     = 16 // values that are on their way in at the same time
	requestTimeout = 10 * time.Second
)

// Serve answers until the context ends, and closes the listener. The scopes are those
// that the launcher announces, with the number of ranks that meet in each.
func Serve(ctx context.Context, l net.Listener, scopes map[string]int) error {
	server := &http.Server{
		Handler:     New(scopes),
		ReadTimeout: requestTimeout, WriteTimeout: requestTimeout, IdleTimeout: requestTimeout,
		MaxHeaderBytes: 8 << 10,
		ErrorLog:       log.New(io.Discard, "", 0), // of strangers' mistakes
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() }) // Serve says that it ended
	defer stop()
	if err := server.Serve(&limitedListener{l, make(chan struct{}, MaxConnections)}); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Handler is the store behind [Serve].
type Handler struct {
	store   store
	uploads chan struct{}
}

// New is an empty store that knows these scopes.
func New(scopes map[string]int) *Handler {
	return &Handler{newStore(scopes), make(chan struct{}, maxUploads)}
}

// ServeHTTP reads the path as it was sent: names aren't decoded, as Horovod's server
// doesn't, and what isn't exactly a scope and a key is refused.
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
	_, _ = w.Write(value) // a reader who has gone
}

// servePut answers with a status. What is on its way in counts for nothing yet, so few may be.
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

// limitedListener accepts no more connections than it has slots.
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
