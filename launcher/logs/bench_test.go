package logs

import (
	"bytes"
	"path/filepath"
	"testing"
	"time"
)

// BenchmarkWrite writes pieces of the size that the monitor reads at once.
func BenchmarkWrite(b *testing.B) {
	for name, line := range map[string]string{"empty lines": "\n", "lines of 80 bytes": string(bytes.Repeat([]byte("x"), 79)) + "\n"} {
		b.Run(name, func(b *testing.B) {
			w, err := Open(filepath.Join(b.TempDir(), "log"), 0, 0)
			if err != nil {
				b.Fatal(err)
			}
			piece := bytes.Repeat([]byte(line), 16<<10/len(line))
			b.SetBytes(int64(len(piece)))
			for b.Loop() {
				if err := w.Write(time.Now(), Stdout, piece); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
