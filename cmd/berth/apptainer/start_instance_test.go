package apptainer

import (
	"strings"
	"testing"
	"time"
)

// endlessLog is a log to which an image writes faster than it is read.
type endlessLog struct{}

func (endlessLog) ReadAt(p []byte, _ int64) (int, error) {
	return copy(p, strings.Repeat("\x1b[31mred\n", len(p))), nil
}

// TestShowLogEnds: the end of a start isn't kept by an image that writes without an end, and no control character of the image reaches the terminal.
func TestShowLogEnds(t *testing.T) {
	stop, shown := make(chan bool), make(chan string)
	go func() {
		var b strings.Builder
		showLog(&b, endlessLog{}, 0, stop)
		shown <- b.String()
	}()
	close(stop)
	select {
	case text := <-shown:
		if strings.Contains(text, "\x1b") || !strings.HasPrefix(text, `\x1b[31mred`) {
			t.Errorf("%.40q", text)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it doesn't end")
	}
}
