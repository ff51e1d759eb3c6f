package supervise

import "time"

// Backoff is the pause before a task is started again: it doubles from one short life to the
// next, and is short again after a life that lasted. The zero value is for a task that was
// started for the first time.
type Backoff struct {
	// shortLives is how many lives in a row were short.
	shortLives int
}

const (
	firstPause = 100 * time.Millisecond
	maxPause   = time.Minute
	longLife   = 10 * time.Second
)

// Next returns the pause after a life of this length.
func (b *Backoff) Next(lived time.Duration) time.Duration {
	if lived >= longLife {
		b.shortLives = 0
	}
	p := firstPause
	for range b.shortLives {
		if p *= 2; p >= maxPause {
			p = maxPause
			break
		}
	}
	b.shortLives++
	return p
}
