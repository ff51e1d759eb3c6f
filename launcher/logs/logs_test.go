package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func timeAt(second int) time.Time { return time.Unix(int64(1e9+second), 7) }

func open(t *testing.T, path string, size int64, files int) *Writer {
	t.Helper()
	w, err := Open(path, size, files)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.file.Close() })
	return w
}

func write(t *testing.T, w *Writer, second int, s Stream, text string) {
	t.Helper()
	if err := w.Write(timeAt(second), s, []byte(text)); err != nil {
		t.Fatal(err)
	}
}

// readText joins what Read gives: "o" and "e" for the streams, a "|" where a line goes on.
func readText(t *testing.T, path string, q Query) string {
	t.Helper()
	var b strings.Builder
	err := Read(context.Background(), path, q, func(e Entry) error {
		b.WriteString(map[Stream]string{Stdout: "o:", Stderr: "e:"}[e.Stream] + string(e.Text))
		if e.Partial {
			b.WriteString("|")
		} else {
			b.WriteString("\n")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestFormat(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	w := open(t, path, 0, 0)
	write(t, w, 0, Stdout, "one\ntwo\nthr")
	write(t, w, 1, Stderr, "\x00\xff\r\n")
	write(t, w, 2, Stdout, "ee\n\n")
	want := "2001-09-09T01:46:40.000000007Z stdout F one\n" +
		"2001-09-09T01:46:40.000000007Z stdout F two\n" +
		"2001-09-09T01:46:40.000000007Z stdout P thr\n" +
		"2001-09-09T01:46:41.000000007Z stderr F \x00\xff\r\n" +
		"2001-09-09T01:46:42.000000007Z stdout F ee\n" +
		"2001-09-09T01:46:42.000000007Z stdout F \n"
	if got, err := os.ReadFile(path); string(got) != want || err != nil {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
}

func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if got := readText(t, path, Query{Tail: -1}); got != "" {
		t.Errorf("a log that isn't there: %q", got)
	}
	w := open(t, path, 0, 0)
	write(t, w, 0, Stdout, "a\nb")
	write(t, w, 1, Stderr, "x\n")
	write(t, w, 2, Stdout, "c\nd\n")
	write(t, w, 3, Stdout, "e")
	for _, tt := range []struct {
		name string
		q    Query
		want string
	}{
		{"all", Query{Tail: -1}, "o:a\no:b|e:x\no:c\no:d\no:e|"},
		{"none", Query{Tail: 0}, ""},
		{"a line without its end", Query{Tail: 1}, "o:e|"},
		{"a line in two parts is one, and its rest alone is none", Query{Tail: 3}, "e:x\no:d\no:e|"},
		{"so it needs one more", Query{Tail: 4}, "o:b|e:x\no:c\no:d\no:e|"},
		{"more than there are", Query{Tail: 100}, "o:a\no:b|e:x\no:c\no:d\no:e|"},
		{"since", Query{Tail: -1, Since: timeAt(2)}, "o:c\no:d\no:e|"},
		{"until", Query{Tail: -1, Until: timeAt(1)}, "o:a\no:b|e:x\n"},
		{"the last until", Query{Tail: 1, Until: timeAt(1)}, "e:x\n"},
		{"between", Query{Tail: -1, Since: timeAt(1), Until: timeAt(1)}, "e:x\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := readText(t, path, tt.q); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// What was written is what is read, whatever it is and however it is cut.
func TestBytesRoundTrip(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		path := filepath.Join(dir, fmt.Sprint(time.Now().UnixNano()))
		w, err := Open(path, 100<<20, 1)
		if err != nil {
			rt.Fatal(err)
		}
		var want [3][]byte
		for _, chunk := range rapid.SliceOfN(rapid.SliceOf(rapid.SampledFrom([]byte("ab\n\n\x00\xff \r"))), 0, 20).Draw(rt, "chunks") {
			s := Stream(rapid.IntRange(1, 2).Draw(rt, "stream"))
			if rapid.IntRange(0, 9).Draw(rt, "long") == 0 {
				chunk = append(chunk, bytes.Repeat([]byte("x"), 3*batchSize)...)
			}
			if rapid.Bool().Draw(rt, "by another writer") {
				if err := w.file.Close(); err != nil {
					rt.Fatal(err)
				}
				if w, err = Open(path, 100<<20, 1); err != nil {
					rt.Fatal(err)
				}
			}
			if err := w.Write(timeAt(0), s, chunk); err != nil {
				rt.Fatal(err)
			}
			want[s] = append(want[s], chunk...)
		}
		var got [3][]byte
		err = Read(context.Background(), path, Query{Tail: -1}, func(e Entry) error {
			got[e.Stream] = append(got[e.Stream], e.Text...)
			if !e.Partial {
				got[e.Stream] = append(got[e.Stream], '\n')
			}
			return nil
		})
		if err != nil || !bytes.Equal(got[1], want[1]) || !bytes.Equal(got[2], want[2]) {
			rt.Errorf("got %q, %v, want %q", got, err, want)
		}
		if err := w.file.Close(); err != nil {
			rt.Fatal(err)
		}
	})
}

func TestTornEntryIsCutOff(t *testing.T) {
	const whole = "2001-09-09T01:46:40.000000007Z stdout F one\n"
	for _, tt := range []struct{ name, have, want string }{
		{"nothing", "", ""},
		{"whole", whole, whole},
		{"torn", whole + "2001-09-09T01:46", whole},
		{"torn at once", "2001-09", ""},
		{"long before", strings.Repeat(whole, 500) + "2001", strings.Repeat(whole, 500)},
		{"torn and long", whole + strings.Repeat("x", 100_000), whole},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			if err := os.WriteFile(path, []byte(tt.have), 0o600); err != nil {
				t.Fatal(err)
			}
			open(t, path, 0, 0)
			if got, err := os.ReadFile(path); string(got) != tt.want || err != nil {
				t.Errorf("%q, %v, want %q", got, err, tt.want)
			}
		})
	}
}

// A task that writes without end takes a fixed share of the disk, and its last words
// are there.
func TestRotation(t *testing.T) {
	for _, files := range []int{1, 2, 3} {
		t.Run(fmt.Sprint(files), func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "log")
			w := open(t, path, MinSize, files)
			const lines = 20_000
			for n := range lines {
				write(t, w, n, Stdout, fmt.Sprintf("line %d\n", n))
			}
			found, err := filepath.Glob(path + "*")
			if err != nil || len(found) != files {
				t.Errorf("files %q, %v", found, err)
			}
			for _, f := range found {
				if fi, err := os.Stat(f); err != nil || fi.Size() > MinSize {
					t.Errorf("%s has %d bytes, %v", f, fi.Size(), err)
				}
			}
			got := strings.Split(strings.TrimSpace(readText(t, path, Query{Tail: -1})), "\n")
			for i, line := range slices.Backward(got) {
				if want := fmt.Sprintf("o:line %d", lines-len(got)+i); line != want {
					t.Fatalf("%q in place of %q", line, want)
				}
			}
			if len(got) < 500 {
				t.Errorf("only %d lines are left", len(got))
			}
		})
	}
}

// A follower gets each line once and in order, across rotations, and also those that were written
// just before the end.
func TestFollow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	w := open(t, path, MinSize, 50)
	const lines = 5000
	var ended atomic.Bool
	go func() {
		for n := range lines {
			if err := w.Write(time.Now(), Stdout, []byte(fmt.Sprintf("line %d\n", n))); err != nil {
				t.Error(err)
			}
			if n%500 == 0 {
				time.Sleep(time.Millisecond)
			}
		}
		ended.Store(true)
	}()
	next := 0
	err := Read(context.Background(), path, Query{Tail: -1, Ended: ended.Load}, func(e Entry) error {
		if want := fmt.Sprintf("line %d", next); string(e.Text) != want {
			return fmt.Errorf("%q in place of %q", e.Text, want)
		}
		next++
		return nil
	})
	if err != nil || next != lines {
		t.Errorf("%d lines, %v", next, err)
	}
}

// A reader that holds the log gets each line, however slow it is, as long as the writer waits.
func TestHold(t *testing.T) {
	for _, tt := range []struct {
		name    string
		patient bool
	}{{"a writer that waits", true}, {"one who doesn't", false}} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			w := open(t, path, MinSize, 3)
			var held, ended atomic.Bool
			w.WaitForReaders(func() bool { held.Store(true); time.Sleep(time.Millisecond); return tt.patient })
			const lines = 20_000
			write(t, w, 0, Stdout, "line 0\n")
			go func() {
				for n := 1; n < lines; n++ {
					if err := w.Write(time.Now(), Stdout, []byte(fmt.Sprintf("line %d\n", n))); err != nil {
						t.Error(err)
					}
				}
				ended.Store(true)
			}()
			next := 0
			err := Read(context.Background(), path, Query{Tail: -1, Hold: true, Ended: ended.Load}, func(e Entry) error {
				if want := fmt.Sprintf("line %d", next); string(e.Text) != want {
					return fmt.Errorf("%q in place of %q", e.Text, want)
				}
				if next++; next == 1 {
					waitUntil(t, func() bool { return held.Load() && (tt.patient || ended.Load()) })
				}
				return nil
			})
			if all := err == nil && next == lines; all != tt.patient {
				t.Errorf("%d lines, %v", next, err)
			}
		})
	}
}

// A reader at the end of the log gets each line once, also if it looks for the next file while the
// writer rotates.
func TestFollowThroughRotations(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	w := open(t, path, MinSize, 3)
	w.ExpectReader()
	w.WaitForReaders(func() bool { time.Sleep(100 * time.Microsecond); return true })
	const pieces = 3_000
	padding := strings.Repeat("x", 30<<10)
	var ended atomic.Bool
	write(t, w, 0, Stdout, "0 "+padding+"\n")
	var writing sync.WaitGroup
	defer writing.Wait()
	writing.Go(func() {
		for n := 1; n < pieces; n++ {
			if err := w.Write(time.Now(), Stdout, []byte(strconv.Itoa(n)+" "+padding+"\n")); err != nil {
				t.Error(err)
			}
		}
		ended.Store(true)
	})
	next := 0
	err := Read(context.Background(), path, Query{Tail: -1, Hold: true, Ended: ended.Load}, func(e Entry) error {
		number, _, _ := strings.Cut(string(e.Text), " ")
		if number != strconv.Itoa(next) {
			return fmt.Errorf("piece %s in place of %d", number, next)
		}
		next++
		return nil
	})
	if err != nil || next != pieces {
		t.Errorf("%d pieces, %v", next, err)
	}
}

// The writer drops nothing before the expected reader has come.
func TestExpected(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	w := open(t, path, MinSize, 3)
	var waited atomic.Bool
	w.ExpectReader()
	w.WaitForReaders(func() bool { waited.Store(true); time.Sleep(time.Millisecond); return true })
	var ended atomic.Bool
	const lines = 10_000
	go func() {
		for n := range lines {
			if err := w.Write(timeAt(n), Stdout, []byte("x\n")); err != nil {
				t.Error(err)
			}
		}
		ended.Store(true)
	}()
	waitUntil(t, waited.Load)
	read := 0
	err := Read(context.Background(), path, Query{Tail: -1, Hold: true, Ended: ended.Load}, func(Entry) error { read++; return nil })
	if err != nil || read != lines {
		t.Errorf("%d lines, %v", read, err)
	}
}

func waitUntil(t *testing.T, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it doesn't come to that")
		}
	}
}

func TestFollowEndsWithItsContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	write(t, open(t, path, 0, 0), 0, Stdout, "x\n")
	ctx, cancel := context.WithCancel(context.Background())
	err := Read(ctx, path, Query{Tail: -1, Ended: func() bool { return false }}, func(Entry) error {
		cancel()
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestFastWriter: a task that writes faster than it is read doesn't keep the reader from ending with its context.
func TestFastWriter(t *testing.T) {
	for name, q := range map[string]Query{"all": {Tail: -1}, "the last line": {Tail: 1}, "following": {Tail: -1, Ended: func() bool { return false }}} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			w := open(t, path, 0, 0)
			line := func() { write(t, w, 0, Stdout, "x\n") }
			line()
			ctx, cancel := context.WithCancel(context.Background())
			q.Since = time.Time{}
			if q.Tail >= 0 { // readTail gives nothing before its end
				cancel()
			}
			given := 0
			err := Read(ctx, path, q, func(Entry) error {
				if given++; given == 5 {
					cancel()
				}
				if given == 100 {
					return errors.New("it goes on")
				}
				line()
				return nil
			})
			cancel()
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// writingContext has each check of the context call write.
type writingContext struct {
	context.Context
	write func()
}

func (c writingContext) Err() error {
	c.write()
	return c.Context.Err()
}

// TestReadEnds: a reader that doesn't follow gives what was in the log when it began, and nothing that is written
// meanwhile. The last lines (Tail) are the last ones of that time, also for a reader that follows.
func TestReadEnds(t *testing.T) {
	for _, tt := range []struct {
		name    string
		padding int // in each line; long lines make the writer drop files before they are read
		faster  int // lines that are written for each that is read, less one
		present int // lines that are there when the reader begins
		q       Query
		follows bool
		want    int  // lines
		some    bool // lines before the last one may be lost
	}{
		{name: "all", present: 5, q: Query{Tail: -1}, want: 5},
		{name: "since", present: 5, q: Query{Tail: -1, Since: timeAt(3)}, want: 2},
		{name: "until later", present: 5, q: Query{Tail: -1, Until: timeAt(1e6)}, want: 5},
		{name: "the last lines", present: 5, q: Query{Tail: 2}, want: 2},
		{name: "more than there are", present: 5, q: Query{Tail: 50}, want: 5},
		{name: "no line", present: 5, q: Query{Tail: 0}, want: 0},
		{name: "an empty log", q: Query{Tail: -1}},
		{name: "rotations", padding: 20 << 10, present: 9, q: Query{Tail: -1}, some: true},
		{name: "many rotations", padding: 20 << 10, faster: 10, present: 9, q: Query{Tail: -1}, some: true},
		{name: "the last lines, rotations", padding: 20 << 10, present: 9, q: Query{Tail: 1}, want: 1},
		{name: "the last lines, many rotations", padding: 20 << 10, faster: 10, present: 9, q: Query{Tail: 2}, want: 2},
		{name: "the last lines, following", present: 5, q: Query{Tail: 2}, follows: true, want: 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			w := open(t, path, MinSize, 3)
			written := 0
			line := func() {
				if written < 1000 { // a reader that doesn't end by itself ends then
					write(t, w, written, Stdout, strconv.Itoa(written)+" "+strings.Repeat("x", tt.padding)+"\n")
					written++
				}
			}
			for range tt.present {
				line()
			}
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			q := tt.q
			if tt.follows {
				q.Ended = func() bool { cancel(); return true } // it is called after the last lines
			}
			during := func() {
				for range 1 + tt.faster {
					line()
				}
			}
			var got []int
			err := Read(writingContext{ctx, during}, path, q, func(e Entry) error {
				text, _, _ := strings.Cut(string(e.Text), " ")
				number, err := strconv.Atoi(text)
				got = append(got, number)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			var want []int
			for n := tt.present - tt.want; n < tt.present; n++ {
				want = append(want, n)
			}
			if tt.some && slices.IsSorted(got) && len(got) > 0 && len(got) <= tt.present {
				got, want = got[len(got)-1:], []int{tt.present - 1}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%d lines, %d, want %d", len(got), got[:min(len(got), 20)], want)
			}
		})
	}
}

// A disk that is full costs output, and never the task; the log says so later.
func TestFullDisk(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "log")
	w := open(t, path, 0, 0)
	good := w.file
	w.file = full
	if err := w.Write(timeAt(0), Stdout, []byte("lost\n")); err == nil {
		t.Error("nothing is said of a full disk")
	}
	w.file = good
	write(t, w, 1, Stdout, "kept\n")
	got := readText(t, path, Query{Tail: -1})
	if !strings.Contains(got, "bytes of output were lost: write /dev/full: no space left on device\n") || !strings.HasSuffix(got, "o:kept\n") {
		t.Errorf("%q", got)
	}
	full.Close()
}

func FuzzParseEntry(f *testing.F) {
	f.Add([]byte("2001-09-09T01:46:40.000000007Z stdout F one"))
	f.Add([]byte("2001-09-09T01:46:40Z stderr P:x "))
	f.Add([]byte("2001-09-09T01:46:40Z stderr X "))
	f.Fuzz(func(t *testing.T, line []byte) {
		e, err := ParseEntry(line)
		if err == nil && (e.Stream != Stdout && e.Stream != Stderr || !bytes.HasSuffix(line, e.Text)) {
			t.Errorf("%q becomes %+v", line, e)
		}
	})
}
