package backend

import (
	"fmt"
	"os"
	"time"

	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/launcher/image"
)

// PrintUnpacking returns a function that prints the progress of unpacking a layer that takes
// long to standard error.
func PrintUnpacking(start time.Time) func(image.Progress) {
	var last time.Time
	return func(p image.Progress) {
		now := time.Now()
		if now.Sub(start) < time.Second || now.Sub(last) < time.Second {
			return
		}
		last = now
		if p.Waiting {
			fmt.Fprintf(os.Stderr, "berth: another task is unpacking layer %s; waiting for it\n", output.ShortenDigest(p.Layer))
			return
		}
		fmt.Fprintf(os.Stderr, "berth: unpacking layer %s: %d of %d MB\n", output.ShortenDigest(p.Layer), p.Done>>20, p.Total>>20)
	}
}
