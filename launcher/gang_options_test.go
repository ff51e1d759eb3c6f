package launcher

import "testing"

func TestGangName(t *testing.T) {
	const name = "a-name-of-forty-letters-and-no-more-indeed-and-so-on-to-the-end"
	o := GangOptions{Ranks: []Rank{{Role: "rank", Index: 2}, {Role: "rank", Index: 10}, {Role: "rank", Index: 9}}}
	if len(name) != 63 {
		t.Fatalf("it has %d letters", len(name))
	}
	for _, tt := range []struct{ name, text, want string }{
		{"as long as can be", name[:55], ""},
		{"one letter more", name[:56], `name "` + name[:56] + `": this gang's can be 55 letters long at most, and not 56: its ranks are called by it (NAME.rank-10), in 63 letters`},
		{"as long as a task's", name, `name "` + name + `": this gang's can be 55 letters long at most, and not 63: its ranks are called by it (NAME.rank-10), in 63 letters`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			if err := o.checkName(tt.text); err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}
