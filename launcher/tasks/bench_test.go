package tasks

import (
	"os"
	"testing"
)

// BenchmarkWriteRecord measures the record that each start in the foreground writes.
func BenchmarkWriteRecord(b *testing.B) {
	s := Store{Data: b.TempDir()}
	r := fullRecord()
	if err := os.MkdirAll(s.Dir(r.ID), 0o700); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := s.WriteRecord(r); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := os.Remove(s.Path(r.ID, recordFile)); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
