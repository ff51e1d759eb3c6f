package dirwatch

import "sync"

// Shared is one inotify instance for all goroutines that watch a directory: the kernel limits the
// instances of a user. It is open while it has subscribers.
type Shared struct {
	dir    string
	events uint32

	mu    sync.Mutex // of what follows
	watch Watch
	done  chan struct{} // closed when the watch is
	to    map[chan struct{}]bool
}

// NewShared returns a watch of a directory for events, as [Open] does, without a subscriber.
func NewShared(dir string, events uint32) *Shared {
	return &Shared{dir: dir, events: events, to: map[chan struct{}]bool{}}
}

// Subscribe returns a channel that receives a value after changes, as Watch.Changed does, until cancel
// is called.
func (s *Shared) Subscribe() (changed <-chan struct{}, cancel func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.to) == 0 {
		s.watch, s.done = Open(s.dir, s.events), make(chan struct{})
		go s.forward(s.watch.Changed, s.done)
	}
	c := make(chan struct{}, 1)
	s.to[c] = true
	return c, func() { s.cancel(c) }
}

func (s *Shared) cancel(c chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if delete(s.to, c); len(s.to) == 0 {
		s.watch.Close()
		close(s.done)
	}
}

// forward passes changes on to all subscribers, until done is closed.
func (s *Shared) forward(changed <-chan struct{}, done <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		case <-changed:
		}
		s.mu.Lock()
		for c := range s.to {
			select {
			case c <- struct{}{}:
			default: // an earlier value wasn't received yet
			}
		}
		s.mu.Unlock()
	}
}
