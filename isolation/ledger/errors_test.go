package ledger

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth/gpu"
)

// The error is one line, however many holders there are, and whatever their names are.
func TestBusyErrorIsOneLine(t *testing.T) {
	since := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	holder := func(name string, first, devices int) Lease {
		l := Lease{Owner: Owner{EntryPoint: "docker", Container: strings.Repeat("c", 64), Name: name}, Since: since}
		for i := range devices {
			l.Devices = append(l.Devices, gpu.Device{Index: fmt.Sprint(first + i)})
		}
		return l
	}
	crowd := make([]Lease, 50)
	for i := range crowd {
		crowd[i] = holder(sanitizeText(strings.Repeat("n", 1000)), 100*i, 100)
	}
	tests := []struct {
		name string
		err  BusyError
		want string
	}{
		{
			"two holders",
			BusyError{Request: "4", Wanted: 4, Free: 2, Total: 8, Holders: []Lease{holder("", 0, 1), holder("job", 1, 5)}},
			"4: 4 asked, 2 of 8 free; held: GPU 0 by docker cccccccccccc since 2026-03-04 05:06, GPU 1,2,3,4,5 by docker job (cccccccccccc) since 2026-03-04 05:06",
		},
		{"more than are named", BusyError{Request: "1", Wanted: 1, Total: 8, Holders: []Lease{
			holder("a", 0, 18), holder("b", 18, 1), holder("c", 19, 1), holder("d", 20, 1), holder("e", 21, 1),
		}}, "1: 1 asked, 0 of 8 free; held: GPU 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15 and 2 more by docker a (cccccccccccc) since 2026-03-04 05:06, " +
			"GPU 18 by docker b (cccccccccccc) since 2026-03-04 05:06, GPU 19 by docker c (cccccccccccc) since 2026-03-04 05:06, " +
			"GPU 20 by docker d (cccccccccccc) since 2026-03-04 05:06 and 1 more"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.err.Error(); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
	if line := (&BusyError{Holders: crowd}).Error(); len(line) > 2000 || !strings.HasSuffix(line, " and 46 more") {
		t.Errorf("%d bytes: %s", len(line), line)
	}
}
