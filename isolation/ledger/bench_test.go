package ledger

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-gpu/berth/internal/atomicfile"
)

// BenchmarkAcquireRelease is one process on a tmpfs, where so many leases of
// others are held already.
func BenchmarkAcquireRelease(b *testing.B) {
	for _, held := range []int{0, 8, 16} {
		b.Run(fmt.Sprintf("held=%d", held), func(b *testing.B) {
			dir := b.TempDir()
			if atomicfile.Volatile("/dev/shm") {
				dir = filepath.Join("/dev/shm", fmt.Sprintf("berth-bench-%d", os.Getpid()))
				b.Cleanup(func() { _ = os.RemoveAll(dir) })
			}
			l := Open(Options{Dir: dir, Events: filepath.Join(dir, "log")})
			a := ask(b, "1g.10gb")
			for range min(held, 13) {
				mustAcquire(b, l, a)
			}
			for range held - 13 {
				mustAcquire(b, l, ask(b, "1"))
			}
			b.ReportAllocs()
			for b.Loop() {
				lease := mustAcquire(b, l, a)
				if err := l.Release(b.Context(), lease.ID); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
