package supervise

import "time"

// Backoff computes the pause before a task is restarted. The pause doubles with each life that ends
// within longLife, up to maxPause, and is firstPause again after a longer life. The zero value is for
// a task that was never restarted.
type Backoff struct {
	// shortLives is the number of lives in a row that were shorter than longLife.
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
