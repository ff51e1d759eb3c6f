package driver

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/testutil"
)

func TestXids(t *testing.T) {
	dev := t.TempDir()
	log := "6,1,10,-;Linux version 6.1\n" +
		"4,7,20,-;NVRM: Xid (PCI:0000:1B:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n" +
		" SUBSYSTEM=pci\n" +
		"12,8,21,-;NVRM: Xid (PCI:0000:43:00): 79, a program has written this\n" +
		"4,9,22,c;NVRM: Xid (PCI:0000:43:00.0): 13, Graphics Exception\n" +
		"4,x,22,-;NVRM: Xid (PCI:0000:43:00): 79, no sequence\n" +
		"4,10,22,-;NVRM: Xid (PCI:0000:43:00): no code\n" +
		"4;NVRM: Xid (PCI:0000:43:00): 79, no fields\n"
	if err := os.WriteFile(filepath.Join(dev, "kmsg"), []byte(log), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Xids(gpu.Host{Dev: dev})
	want := []Xid{{7, "0000:1b:00.0", 79}, {9, "0000:43:00.0", 13}}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Error(err, d)
	}
	if got, err := Xids(gpu.Host{Dev: "/nonexistent"}); got != nil || err != nil {
		t.Errorf("without a log: %v, %v", got, err)
	}
}

// Reading the kernel's own log ends after the last record; it doesn't wait for the next one.
func TestXidsOfThisKernel(t *testing.T) {
	testutil.NeedRoot(t)
	began := time.Now()
	if _, err := Xids(gpu.Host{}); err != nil {
		t.Error(err)
	}
	if d := time.Since(began); d > 30*time.Second {
		t.Errorf("it took %v", d)
	}
}
