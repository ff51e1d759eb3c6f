package ledger

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// What was written by hand is read by hand, and encoding/json reads the same.
func TestScanReadsWhatTextWrites(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := anyLease().Filter(func(l Lease) bool { return len(l.Devices) > 0 }).Draw(t, "lease")
		pad := rapid.SampledFrom([]string{"", indent}).Draw(t, "indent")
		by := text{indent: pad}
		if by.lease(&l); by.err != nil {
			t.Fatal(by.err)
		}
		got, ok := parseLease(by.b, pad)
		if !ok {
			t.Fatalf("not read: %s", by.b)
		}
		var want Lease
		if err := json.Unmarshal(by.b, &want); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(&want, got); diff != "" {
			t.Fatal(diff)
		}
	})
}

// Whatever is read by hand, encoding/json reads in the same way; and what isn't is
// left to it.
func FuzzScan(f *testing.F) {
	var seeds [][]byte
	for _, r := range sample().leases {
		by := text{indent: indent}
		by.lease(r.v)
		seeds = append(seeds, by.b)
		f.Add(by.b)
	}
	lease := string(seeds[0])
	for _, other := range []string{"0360000", "-0", "+1", "1e3", "1.0", "", "18446744073709551616", `"1"`, "null", " 1"} {
		f.Add([]byte(strings.Replace(lease, ": 360000", ": "+other, 1)))
	}
	for _, other := range []string{`\"`, "\n", `\ud800`, "\xff", "\x7f", "<", `\`} {
		f.Add([]byte(strings.Replace(lease, "python3", other, 1)))
	}
	by := text{indent: indent}
	by.waiter(sample().line[0].v)
	f.Add(by.b)
	f.Fuzz(func(t *testing.T, raw []byte) {
		if l, ok := parseLease(raw, indent); ok {
			var want Lease
			if err := json.Unmarshal(raw, &want); err != nil {
				t.Fatalf("read what isn't a lease: %v", err)
			}
			if diff := cmp.Diff(&want, l); diff != "" {
				t.Fatal(diff)
			}
		}
		if w, ok := parseWaiter(raw, indent); ok {
			var want waiter
			if err := json.Unmarshal(raw, &want); err != nil {
				t.Fatalf("read what isn't a waiter: %v", err)
			}
			if diff := cmp.Diff(want, w, cmp.AllowUnexported(waiter{})); diff != "" {
				t.Fatal(diff)
			}
		}
	})
}
