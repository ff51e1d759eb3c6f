package ledger

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/atomicfile"
)

// BenchmarkAcquireRelease measures one process on a tmpfs, with this many leases of others.
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

// BenchmarkRefusal measures a refusal on a server with 64 GPUs, of which nearly all slices are
// leased.
func BenchmarkRefusal(b *testing.B) {
	var inv gpu.Inventory
	for i := range 64 {
		g := gpu.GPU{UUID: fmt.Sprintf("GPU-%d", i), Index: i, Minor: i, MIG: true, Memory: 80 << 30}
		for k := range 32 {
			g.Slices = append(g.Slices, gpu.Slice{UUID: fmt.Sprintf("MIG-%d-%d", i, k), Profile: "1g.10gb", Memory: 10 << 30})
		}
		inv.GPUs = append(inv.GPUs, g)
	}
	l := fresh(b)
	a := Ask{Owner: Owner{EntryPoint: "api"}, Request: parseRequest(b, "1g.10gb"), Inventory: inv}
	for range 2000 {
		mustAcquire(b, l, a)
	}
	a.Request = parseRequest(b, "1g.10gb:64")
	for b.Loop() {
		if _, err := l.Acquire(b.Context(), a); !errors.Is(err, ErrBusy) {
			b.Fatal(err)
		}
	}
}
