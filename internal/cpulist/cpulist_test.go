package cpulist

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	for _, tt := range []struct {
		list string
		want []int
		bad  bool
	}{
		{list: "0", want: []int{0}},
		{list: "0-2,8\n", want: []int{0, 1, 2, 8}},
		{list: "3-3", want: []int{3}},
		{list: "", bad: true},
		{list: "2-1", bad: true},
		{list: "-1", bad: true},
		{list: "0-", bad: true},
		{list: "0,,1", bad: true},
		{list: "0-99999999", bad: true},
		{list: "a", bad: true},
	} {
		got, err := Parse(tt.list)
		if diff := cmp.Diff(tt.want, got); diff != "" || (err != nil) != tt.bad {
			t.Errorf("%q: %v, %v", tt.list, got, err)
		}
	}
}

func TestFormat(t *testing.T) {
	for want, numbers := range map[string][]int{"": nil, "7": {7}, "0,1,8": {0, 1, 8}} {
		if got := Format(numbers); got != want {
			t.Errorf("%v: %q, want %q", numbers, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("0-3,8")
	f.Fuzz(func(t *testing.T, list string) {
		numbers, err := Parse(list)
		for _, n := range numbers {
			if err == nil && (n < 0 || n >= Max) {
				t.Errorf("%q names %d", list, n)
			}
		}
	})
}
