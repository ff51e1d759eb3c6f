package json

import (
	"encoding/json"
	"strings"
	"testing"
)

func FuzzValid(f *testing.F) {
	for _, s := range []string{
		strange, ``, ` `, `[]`, `[1,]`, `{"a":}`, `{"a":1,}`, `-`, `-0`, `01`, `1.`, `1.5e`, `1E+9`, `1e-0`,
		`"\u12aF"`, `"\u12g4"`, `"\x"`, `"` + "\x1f" + `"`, `"` + "\xff\x7f" + `"`, `nul`, `truee`, `{"a":1}{}`, "[\v1]", `"\`, `"\u12`, `{1:2}`, `[[]`, `{"a" 1}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if got, want := Valid(data), json.Valid(data); got != want {
			t.Errorf("%q: %v, json.Valid says %v", data, got, want)
		}
	})
}

func TestValidDepth(t *testing.T) {
	for _, depth := range []int{maxDepth - 1, maxDepth, maxDepth + 1, 1 << 20} {
		for _, pair := range []string{"[]", `{"":}`} {
			open, closing := pair[:len(pair)-1], pair[len(pair)-1:]
			data := []byte(strings.Repeat(open, depth) + "0" + strings.Repeat(closing, depth))
			if got, want := Valid(data), json.Valid(data); got != want {
				t.Errorf("depth %d of %s: %v, json.Valid says %v", depth, pair, got, want)
			}
		}
	}
}

func BenchmarkValid(b *testing.B) {
	for name, check := range map[string]func([]byte) bool{"ours": Valid, "encoding/json": json.Valid} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				check([]byte(strange))
			}
		})
	}
}
