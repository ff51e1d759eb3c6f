package supervise

import "testing"

func TestParseSignal(t *testing.T) {
	for text, want := range map[string]int{"TERM": 15, "SIGINT": 2, "sigusr1": 10, "9": 9, "SIGRTMIN": 34, "RTMIN+3": 37, "SIGRTMAX-1": 63, "64": 64} {
		if got, err := ParseSignal(text); err != nil || int(got) != want {
			t.Errorf("%s is %d (%v), want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "0", "-1", "65", "SIG", "NOPE", "RTMIN+99", "RTMAX+1", "RTMIN-1"} {
		if got, err := ParseSignal(text); err == nil {
			t.Errorf("%q is %d", text, got)
		}
	}
}
