package lock

import "testing"

func TestFindHolder(t *testing.T) {
	const locks = "1: POSIX  ADVISORY  WRITE 11 00:1a:5678 0 EOF\n" +
		"2: FLOCK  ADVISORY  WRITE 12 00:1a:5679 0 EOF\n" +
		"3: FLOCK  ADVISORY  WRITE 13 00:1a:5678 0 EOF\n" +
		"3: -> FLOCK  ADVISORY  WRITE 14 00:1a:5678 0 EOF\n" +
		"4: FLOCK  ADVISORY  WRITE -1 00:1a:5670 0 EOF\n"
	for _, tt := range []struct {
		name, file string
		want       int
	}{
		{"held", "00:1a:5678", 13},
		{"free", "00:1a:1", 0},
		{"held out of sight", "00:1a:5670", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := findHolder(locks, tt.file); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}
