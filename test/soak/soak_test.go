package main

import (
	"bytes"
	"os"
	"testing"

	"github.com/berth-gpu/berth/internal/testutil"
)

// The test's own program plays the workers and containers.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == roleArg {
		os.Exit(playRole(os.Args[2:]))
	}
	os.Exit(m.Run())
}

// TestSoak is the soak for some seconds: make soak runs a million operations.
func TestSoak(t *testing.T) {
	testutil.NeedRoot(t)
	ops := 15_000
	if testing.Short() {
		ops = 2_000
	}
	var out bytes.Buffer
	if err := soak(t.Context(), options{ops: ops, procs: 64, out: &out}); err != nil {
		t.Error(err)
	}
	t.Log(out.String())
}

func TestBenchmark(t *testing.T) {
	var out bytes.Buffer
	if err := benchmark(t.Context(), options{ops: 200, procs: 4, out: &out}); err != nil {
		t.Error(err)
	}
	t.Log(out.String())
}

func TestBurst(t *testing.T) {
	var out bytes.Buffer
	if err := burst(t.Context(), options{ops: 8, procs: 4, held: 3, out: &out}); err != nil {
		t.Error(err)
	}
	t.Log(out.String())
}
