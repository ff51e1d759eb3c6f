package message

import (
	"errors"
	"testing"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/match"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/isolation/ledger"
)

func TestWithAdvice(t *testing.T) {
	wanted, err := request.Parse("9")
	if err != nil {
		t.Fatal(err)
	}
	_, tooMany := match.Choose(gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-0"}}}, wanted, nil)
	tests := []struct {
		name string
		err  error
		want string
	}{
		{"more than there are", tooMany, "request 9: node has 1 GPU, 9 asked; berth gpus lists the node's devices"},
		{"busy", &ledger.BusyError{Request: "1", Wanted: 1, Total: 1}, "request 1: 1 asked, 0 of 1 free; try again when they are free: berth leases shows who holds what"},
		{"corrupt", ledger.ErrCorrupt, ledger.ErrCorrupt.Error() + "; berth repair rebuilds it from the running holders"},
		{"lost", berth.ErrLedgerLost, berth.ErrLedgerLost.Error() + "; berth repair rebuilds it from the running holders"},
		{"another", errors.New("x"), "x"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := withAdvice(tt.err, true); got == nil || got.Error() != tt.want || !errors.Is(got, tt.err) {
				t.Errorf("got %v, want %s", got, tt.want)
			}
		})
	}
	if err := withAdvice(errors.New("x"), false); !errors.Is(err, ErrRootless) || err.Error() != ErrRootless.Error()+": only root can lease devices: start the container by root's engine (sudo)" {
		t.Errorf("of a user's engine: %v", err)
	}
	if err := WithAdvice(nil); err != nil {
		t.Errorf("of nothing: %v", err)
	}
}

func TestOneLine(t *testing.T) {
	tests := map[string]string{
		"open /x: no such file or directory\nfork: permission denied": "open /x: it does not exist; fork: access was refused",
		"a\tb\x7fc":                       `a b\x7fc`,
		"/x: is a directory":              "/x: names a directory",
		"/x: not a directory":             "/x: names no directory",
		"exec: executable file not found": "exec: program is missing",
		"exec format error":               "cannot be executed",
	}
	for in, want := range tests {
		if got := OneLine(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}
