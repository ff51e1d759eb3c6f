package match

import (
	"fmt"
	"math/bits"
	"slices"
	"testing"
)

func TestMasksOf(t *testing.T) {
	for size := range maxWhole + 1 {
		for n := range size + 1 {
			t.Run(fmt.Sprint(n, " of ", size), func(t *testing.T) {
				var want []uint
				for mask := range uint(1) << size {
					if bits.OnesCount(mask) == n {
						want = append(want, mask)
					}
				}
				if got := slices.Collect(masksOf(n, size)); !slices.Equal(got, want) {
					t.Errorf("got %b, want %b", got, want)
				}
			})
		}
	}
}
