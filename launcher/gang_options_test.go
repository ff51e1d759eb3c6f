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
		{"one character more", name[:56], `name "` + name[:56] + `" has 56 characters, and this gang's can have 55 at most: the name of a rank (NAME.rank-10) has at most 63`},
		{"as long as a task's", name, `name "` + name + `" has 63 characters, and this gang's can have 55 at most: the name of a rank (NAME.rank-10) has at most 63`},
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
