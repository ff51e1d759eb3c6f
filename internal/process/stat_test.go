package process

import "testing"

func TestParseStat(t *testing.T) {
	with := func(head, threads string) string {
		return head + " 1 2 2 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 " + threads + " 0 567890 1 2 3\n"
	}
	for _, tt := range []struct {
		name, stat string
		want       Stat
		ok         bool
	}{
		{"sleeping", with("12 (sleep) S", "1"), Stat{567890, false}, true},
		{"zombie", with("12 (sleep) Z", "1"), Stat{567890, true}, true},
		{"main thread ended, others run", with("12 (python3) Z", "4"), Stat{567890, false}, true},
		{"hostile name", with("12 (a) Z 1 2 (b) S", "1"), Stat{567890, false}, true},
		{"cut", "12 (sleep) S 1 2", Stat{}, false},
		{"empty", "", Stat{}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseStat(splitStat(tt.stat))
			if got != tt.want || (err == nil) != tt.ok {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}
