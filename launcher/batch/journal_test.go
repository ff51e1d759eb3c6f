package batch

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berth-gpu/berth/internal/testutil"
)

func newRecord(n int) Record {
	return Record{Kind: Ended, At: time.Unix(int64(n), 0).UTC(), Task: n, Exit: &Exit{Code: n, Why: "a \"reason\"\nin two lines"}}
}

// TestJournalIsCut: of a journal that ends anywhere, or is damaged anywhere, all records before that place are read, and none after it. The next record is written behind
// them.
func TestJournalIsCut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j, err := OpenJournal(path, func(Record) {})
	testutil.Must(t, err)
	var ends []int
	for n := 1; n <= 20; n++ {
		testutil.Must(t, j.Append(newRecord(n)))
		st, err := os.Stat(path)
		testutil.Must(t, err)
		ends = append(ends, int(st.Size()))
	}
	testutil.Must(t, j.Close())
	whole, err := os.ReadFile(path)
	testutil.Must(t, err)
	rapid.Check(t, func(t *rapid.T) {
		text := bytes.Clone(whole)
		at := rapid.IntRange(0, len(text)-1).Draw(t, "at")
		if rapid.Bool().Draw(t, "damaged") {
			text[at] ^= byte(rapid.IntRange(1, 255).Draw(t, "xor"))
		} else {
			text = text[:at]
		}
		want := 0
		for want < len(ends) && ends[want] <= at {
			want++
		}
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		got := 0
		count := func(r Record) {
			if got++; r.Task != got {
				t.Fatalf("record %d is that of task %d", got, r.Task)
			}
		}
		j, err := OpenJournal(path, count)
		if err != nil || got != want {
			t.Fatalf("%d records, %v, want %d", got, err, want)
		}
		if err := errors.Join(j.Append(newRecord(want+1)), j.Close()); err != nil {
			t.Fatal(err)
		}
		if got = 0; ReadJournal(path, count) != nil || got != want+1 {
			t.Fatalf("%d records after one more, want %d", got, want+1)
		}
	})
}

func TestJournalIsLocked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	j, err := OpenJournal(path, func(Record) {})
	testutil.Must(t, err)
	if _, err := OpenJournal(path, func(Record) {}); !errors.Is(err, ErrLocked) {
		t.Errorf("error %v", err)
	}
	testutil.Must(t, j.Close())
	j, err = OpenJournal(path, func(Record) {})
	testutil.Must(t, err)
	testutil.Must(t, j.Close())
}

func FuzzParseJournal(f *testing.F) {
	f.Add([]byte("ce8a7fba 2 {}\n"))
	f.Add(fmt.Appendf(nil, "%s 2 {}\n", formatChecksum([]byte("{}"))))
	f.Fuzz(func(t *testing.T, text []byte) {
		r := NewReplay(&Batch{Tasks: make([]Task, 3)})
		if end := ParseJournal(text, r.Add); end < 0 || end > len(text) {
			t.Errorf("%d of %d bytes", end, len(text))
		}
		r.Count()
	})
}
