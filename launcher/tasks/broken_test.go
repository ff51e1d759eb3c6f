package tasks

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
)

// A damaged record makes its task broken, and no other; an empty record of a life or an end, which a
// power failure leaves, counts as none.
func TestBroken(t *testing.T) {
	huge := `{"version":1,"id":"` + idA + `","name":"` + strings.Repeat("x", maxRecord) + `"}`
	for _, tt := range []struct {
		name, file, data string
		broken, hopeless bool
	}{
		{"record, empty", recordFile, "", true, true},
		{"record, of zeros", recordFile, strings.Repeat("\x00", 300), true, true},
		{"record, cut off", recordFile, `{"version":1,"id":"aaaa`, true, true},
		{"record, too large", recordFile, huge, true, true},
		{"record, another task's", recordFile, `{"version":1,"id":"` + idC + `"}`, true, true},
		{"record, a later berth's", recordFile, `{"version":2}`, true, false},
		{"life, empty", lifeFile, "", false, false},
		{"life, of zeros", lifeFile, strings.Repeat("\x00", 300), false, false},
		{"life, cut off", lifeFile, `{"version":1`, true, true},
		{"end, empty", exitFile, "", false, false},
		{"end, cut off", exitFile, `{"version":1`, true, true},
		{"end, a later berth's", exitFile, `{"version":2}`, true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := Store{Data: t.TempDir(), State: t.TempDir()}
			put(t, s, idA, "train", 0)
			put(t, s, idB, idB, 0)
			if err := os.WriteFile(s.Path(idA, tt.file), []byte(tt.data), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := s.Find("train")
			var broken *BrokenError
			if is := errors.As(err, &broken); is != tt.broken || is && (broken.ID != idA || broken.IsDamaged() != tt.hopeless) {
				t.Errorf("%v, hopeless %v", err, is && broken.IsDamaged())
			}
			all, err := s.List()
			if len(all) != 2 || err != nil {
				t.Fatalf("%d tasks, %v", len(all), err)
			}
			for _, task := range all {
				if want := tt.broken && task.ID == idA; want != (task.State == Broken) || want && task.Why == "" {
					t.Errorf("%+v", task)
				}
			}
			if err := s.Remove(idA); err != nil {
				t.Error(err)
			}
			if _, err := s.Record(idA); !errors.Is(err, fs.ErrNotExist) || s.IDByName("train") != "" {
				t.Errorf("it is still there: %v, %q", err, s.IDByName("train"))
			}
		})
	}
}

// A record that is too long to be read is refused, and the error of an end is cut.
func TestNothingUnreadableIsWritten(t *testing.T) {
	s := Store{Data: t.TempDir()}
	makeTask(t, s, idA)
	long := strings.Repeat("\x01", 100<<10)
	if err := s.WriteRecord(Record{ID: idA, Command: []string{long, long}}); err == nil || !strings.Contains(err.Error(), "are too long: ") {
		t.Errorf("error %v", err)
	}
	if _, err := s.Record(idA); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it was written: %v", err)
	}
	end := Exit{Code: 3, Error: long}
	if err := errors.Join(s.WriteLife(idA, Life{Ended: &end}), s.WriteExit(idA, end)); err != nil {
		t.Fatal(err)
	}
	l, err1 := s.Life(idA)
	e, err2 := s.Exit(idA)
	if err := errors.Join(err1, err2); err != nil || l.Ended.Code != 3 || e.Code != 3 || len(e.Error) < 1000 {
		t.Errorf("%v, %v", e, err)
	}
	if len(end.Error) != len(long) {
		t.Error("the caller's is cut")
	}
}
