package main

import (
	"fmt"
	"math"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// stats are counted in a shared file, so that they outlive killed workers.
type stats struct {
	acquired, refused, released atomic.Int64
	containers, bound, left     atomic.Int64
	selfKills, waits            atomic.Int64
	// pair holds the times of acquire + release, by halves of powers of two.
	pair [128]atomic.Int64
}

func openStats(path string) (*stats, error) {
	size := int(unsafe.Sizeof(stats{}))
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.Truncate(int64(size)); err != nil {
		return nil, err
	}
	b, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", path, err)
	}
	return (*stats)(unsafe.Pointer(&b[0])), nil
}

func (s *stats) ops() int64 { return s.acquired.Load() + s.refused.Load() + s.released.Load() }

// perDouble is how many buckets there are for each power of two.
const perDouble = 4

func (s *stats) time(d time.Duration) {
	i := int(perDouble * math.Log2(float64(max(d, time.Microsecond))/float64(time.Microsecond)))
	s.pair[min(i, len(s.pair)-1)].Add(1)
}

// quantile is the upper end of the bucket in which the quantile lies.
func (s *stats) quantile(q float64) time.Duration {
	total := int64(0)
	for i := range s.pair {
		total += s.pair[i].Load()
	}
	rest := int64(math.Ceil(q * float64(total)))
	for i := range s.pair {
		if rest -= s.pair[i].Load(); rest <= 0 && total > 0 {
			return time.Duration(math.Exp2(float64(i+1)/perDouble) * float64(time.Microsecond))
		}
	}
	return 0
}
