package protocol

import (
	"bufio"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/match"
	"github.com/berth-gpu/berth/isolation/ledger"
)

func TestParseRequest(t *testing.T) {
	for _, c := range []struct {
		name, line string
		want       Request
		err        string
	}{
		{"acquire", `{"version":1,"acquire":{"request":"2","wait_seconds":-1,"command":"python x.py"}}`, Request{Version: 1, Acquire: &Acquire{Request: "2", WaitSeconds: -1, Command: "python x.py"}}, ""},
		{"adopt", `{"version":1,"adopt":{"pid":12,"request":"device=3","wait_seconds":2}}`, Request{Version: 1, Adopt: &Adopt{12, "device=3", 2}}, ""},
		{"release", `{"version":1,"release":{"lease":"0123456789ab","force":true}}`, Request{Version: 1, Release: &Release{"0123456789ab", true}}, ""},
		{"list", `{"version":1,"list":{}}`, Request{Version: 1, List: &List{}}, ""},
		{"no JSON", `acquire 2`, Request{}, "the request is not a line of JSON: invalid character 'a' looking for beginning of value"},
		{"no version", `{"list":{}}`, Request{}, "the request has no version"},
		{"a later version", `{"version":2,"adopt":{"pid":12}}`, Request{}, "the request is of version 2, and this broker speaks version 1"},
		{"an unknown field", `{"version":1,"acquire":{"request":"2","uid":0}}`, Request{}, `the request can't be read: json: unknown field "uid"`},
		{"nothing", `{"version":1}`, Request{}, "the request must have one of acquire, adopt, release, list and cgroup, and has 0"},
		{"two", `{"version":1,"list":{},"release":{"lease":"a"}}`, Request{}, "the request must have one of acquire, adopt, release, list and cgroup, and has 2"},
		{"another type", `{"version":1,"release":{"lease":7}}`, Request{}, "the request can't be read: json: cannot unmarshal number into Go struct field Release.release.lease of type string"},
		{"more than a message", `{"version":1,"list":{}} {}`, Request{}, "the request is not a line of JSON: invalid character '{' after top-level value"},
		{"too long a wait for a process", `{"version":1,"adopt":{"pid":1,"request":"2","wait_seconds":1e300}}`, Request{}, "wait_seconds is more than 1000000000; a negative number waits for ever"},
		{"a pid that is no number", `{"version":1,"adopt":{"pid":"x"}}`, Request{}, "the request can't be read: json: cannot unmarshal string into Go struct field Adopt.adopt.pid of type int"},
		{"too long a wait", `{"version":1,"acquire":{"request":"2","wait_seconds":1e300}}`, Request{}, "wait_seconds is more than 1000000000; a negative number waits for ever"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := ParseRequest([]byte(c.line))
			text := ""
			if err != nil {
				text = err.Error()
			}
			if diff := cmp.Diff(c.want, got) + cmp.Diff(c.err, text); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestWait(t *testing.T) {
	for seconds, want := range map[float64]time.Duration{0: 0, -7: -1, 1.5: 1500 * time.Millisecond, maxWait: maxWait * time.Second} {
		if got := (Acquire{WaitSeconds: seconds}).Wait(); got != want {
			t.Errorf("%v s: %v, want %v", seconds, got, want)
		}
	}
}

func TestReadLine(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       string
		err        error
	}{
		{"a line", "abc\ndef", "abc\n", nil},
		{"of the greatest length", "123456789\n", "123456789\n", nil},
		{"too long", "1234567890\n", "", ErrTooLong},
		{"without an end", strings.Repeat("x", 1000), "", ErrTooLong},
		{"torn", "abc", "", io.ErrUnexpectedEOF},
		{"nothing", "", "", io.EOF},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := ReadLine(bufio.NewReaderSize(strings.NewReader(c.text), 16), 10)
			if string(got) != c.want || !errors.Is(err, c.err) {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

// TestErrors: a client sees the errors that it would get from the ledger.
func TestErrors(t *testing.T) {
	busy := ledger.BusyError{
		Request: "3", Wanted: 3, Free: 1, Total: 8, Ahead: 2, Waited: time.Second, Holders: []ledger.Lease{{ID: "0123456789ab"}},
		Occupied: []gpu.Occupied{{Device: gpu.Device{UUID: "GPU-0"}, By: []gpu.Process{{PID: 7}}}},
	}
	message := NewBusy(busy)
	err := error(&Error{Code: CodeBusy, Message: busy.Error(), Busy: &message})
	var got *ledger.BusyError
	if !errors.As(err, &got) || !errors.Is(err, match.ErrBusy) || err.Error() != busy.Error() {
		t.Fatal(err)
	}
	if diff := cmp.Diff(busy, *got); diff != "" {
		t.Error(diff)
	}
	for code, target := range errorsByCode() {
		if err := Errorf(code, "text"); !errors.Is(err, target) || CodeOf(err) != code || CodeOf(target) != code {
			t.Errorf("%s: %v", code, err)
		}
	}
	if got := CodeOf(io.EOF); got != CodeFailed {
		t.Error(got)
	}
}

func FuzzParseRequest(f *testing.F) {
	for _, line := range []string{
		`{"version":1,"acquire":{"request":"2","wait_seconds":-1,"command":"python x.py"}}`, `{"version":1,"release":{"lease":"0123456789ab","force":true}}`,
		`{"version":1,"list":{}}`, `{"version":2}`, `{"version":1,"list":null}`, `[`, "\x00",
	} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		r, err := ParseRequest(line)
		var e *Error
		if err != nil {
			if !errors.As(err, &e) || strings.Contains(e.Message, "\n") {
				t.Fatalf("%q", err)
			}
			return
		}
		if r.Version != Version || r.Acquire != nil && r.Acquire.Wait() < -1 {
			t.Errorf("%+v", r)
		}
		var again strings.Builder
		if err := WriteLine(&again, r); err != nil {
			t.Fatal(err)
		}
		same, err := ParseRequest([]byte(again.String()))
		if err != nil || !cmp.Equal(r, same) {
			t.Errorf("%+v is read again as %+v, %v", r, same, err)
		}
	})
}
