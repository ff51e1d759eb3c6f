package rendezvous

import (
	"net"
	"sync"
)

type name struct{ scope, key string }

// store is safe for concurrent use.
type store struct {
	mu       sync.Mutex
	values   map[string]map[string][]byte
	sizes    map[string]int             // number of ranks by announced scope
	finished map[string]map[string]bool // ranks that have finished, by announced scope
	keys     int
	bytes    int
}

func newStore(scopes map[string]int) store {
	return store{values: map[string]map[string][]byte{}, sizes: scopes, finished: map[string]map[string]bool{}}
}

func (s *store) getValue(n name) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	value, ok := s.values[n.scope][n.key]
	return value, ok
}

// putValue returns false if the store is full. The store keeps the slice.
func (s *store) putValue(n name, value []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys, bytes := s.keys+1, s.bytes+weightOf(n, value)
	if old, ok := s.values[n.scope][n.key]; ok {
		keys, bytes = keys-1, bytes-weightOf(n, old)
	}
	if keys > MaxKeys || bytes > MaxBytes {
		return false
	}
	if s.values[n.scope] == nil {
		s.values[n.scope] = map[string][]byte{}
	}
	s.values[n.scope][n.key] = value
	s.keys, s.bytes = keys, bytes
	return true
}

// finishScope handles a DELETE. It is idempotent.
func (s *store) finishScope(n name) {
	s.mu.Lock()
	defer s.mu.Unlock()
	size, announced := s.sizes[n.scope]
	if !announced {
		s.dropValue(n)
		return
	}
	if s.finished[n.scope] == nil {
		s.finished[n.scope] = map[string]bool{}
	}
	s.finished[n.scope][n.key] = true
	if len(s.finished[n.scope]) < size {
		return
	}
	delete(s.finished, n.scope)
	for key := range s.values[n.scope] {
		s.dropValue(name{n.scope, key})
	}
}

func (s *store) dropValue(n name) {
	value, ok := s.values[n.scope][n.key]
	if !ok {
		return
	}
	delete(s.values[n.scope], n.key)
	if len(s.values[n.scope]) == 0 {
		delete(s.values, n.scope)
	}
	s.keys, s.bytes = s.keys-1, s.bytes-weightOf(n, value)
}

// weightOf returns the bytes of a value and its names. Names count, so that many keys with empty values
// are bounded too.
func weightOf(n name, value []byte) int { return len(n.scope) + len(n.key) + len(value) }

// limitedConn is a connection that frees its slot when it is closed.
type limitedConn struct {
	net.Conn
	once sync.Once
	free func()
}

func (c *limitedConn) Close() error {
	c.once.Do(c.free)
	return c.Conn.Close()
}
