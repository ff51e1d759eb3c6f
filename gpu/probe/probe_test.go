package probe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-gpu/berth/gpu"
)

// script is a Stream of given messages, and then an end.
type script struct {
	messages []Message
	end      func(context.Context) error
}

func (s script) Stream(ctx context.Context, send func(Message) error) error {
	for _, m := range s.messages {
		if err := send(m); err != nil {
			return err
		}
	}
	if s.end != nil {
		return s.end(ctx)
	}
	return nil
}

func healthy(i, switches int, peers map[string]int) Message {
	return Message{GPU: &Reading{
		GPU:         gpu.GPU{UUID: fmt.Sprint("GPU-", i), Index: i, PCI: fmt.Sprintf("0000:0%d:00.0", i)},
		SwitchLinks: switches, PeerLinks: peers,
	}}
}

func startMessage(n int) Message {
	return Message{Start: &Start{Driver: gpu.Driver{Version: "550.1"}, GPUs: n}}
}

func hang(context.Context) error {
	for {
		time.Sleep(time.Hour)
	}
}

// The scripts with which both ends are tested.
func scripts() map[string]script {
	two := []Message{startMessage(2), healthy(1, 0, nil), healthy(0, 0, nil)}
	return map[string]script{
		"two":    {messages: two},
		"none":   {messages: []Message{startMessage(0)}},
		"failed": {messages: two[:1], end: func(context.Context) error { return errors.New("nvmlInit_v2: Unknown Error") }},
		"no driver": {end: func(context.Context) error {
			return fmt.Errorf("read: %w", &gpu.NoDriverError{Library: "libx.so", Reason: "not there"})
		}},
		"hangs": {messages: two[:2], end: hang},
		"stubborn": {messages: two[:2], end: func(ctx context.Context) error {
			signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGPIPE)
			return hang(ctx)
		}},
		"hangs at once": {end: hang},
		"crashes": {messages: two[:2], end: func(context.Context) error {
			fmt.Fprintln(os.Stderr, "symbol lookup error:\nundefined symbol: nvmlNew")
			os.Exit(127)
			return nil
		}},
		"silent":  {end: func(context.Context) error { os.Exit(0); return nil }},
		"garbage": {end: func(context.Context) error { fmt.Println("hello"); return nil }},
		"twice":   {messages: []Message{startMessage(1), healthy(0, 0, nil), healthy(0, 0, nil)}},
		"early":   {messages: []Message{healthy(0, 0, nil)}},
		"many":    {messages: []Message{startMessage(1 << 30)}},
		"huge":    {messages: []Message{startMessage(1), {GPU: &Reading{GPU: gpu.GPU{Model: strings.Repeat("x", 1<<21)}}}}},
	}
}

// TestMain is also the child: with a script's name in the environment it serves
// that script.
func TestMain(m *testing.M) {
	if name := os.Getenv("PROBE_METER"); name != "" {
		if err := ServeUse(os.Stdin, os.Stdout, scriptedMeter(name)); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	if name := os.Getenv("PROBE_SCRIPT"); name != "" {
		if err := Serve(context.Background(), os.Stdout, scripts()[name]); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func child(t *testing.T, name string, timeout time.Duration) Child {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Child{Path: self, Env: []string{"PROBE_SCRIPT=" + name}, Timeout: timeout}
}

func TestChild(t *testing.T) {
	const long, short = time.Minute, 8 * time.Second
	self := child(t, "", 0).Path
	both := []gpu.GPU{healthy(0, 0, nil).GPU.GPU, healthy(1, 0, nil).GPU.GPU}
	second := func(reason string) []gpu.GPU { return []gpu.GPU{Lost(0, reason), both[1]} }
	tests := []struct {
		name    string
		timeout time.Duration
		want    []gpu.GPU
		wantErr string
	}{
		{name: "two", timeout: long, want: both},
		{name: "none", timeout: long, want: []gpu.GPU{}},
		{name: "failed", timeout: long, wantErr: "nvmlInit_v2: Unknown Error"},
		{name: "no driver", timeout: long, wantErr: "load libx.so: not there"},
		{name: "hangs", timeout: short, want: second("no answer within 8s")},
		{name: "stubborn", timeout: short, want: second("no answer within 8s")},
		{name: "hangs at once", timeout: short, wantErr: "read node: no answer within 8s"},
		{name: "crashes", timeout: long, want: second(self + " ended too early: exit status 127: symbol lookup error: undefined symbol: nvmlNew")},
		{name: "silent", timeout: long, wantErr: "ended too early"},
		{name: "garbage", timeout: long, wantErr: "read output"},
		{name: "twice", timeout: long, wantErr: "GPU 0 reported out of turn"},
		{name: "early", timeout: long, wantErr: "GPU 0 reported out of turn"},
		{name: "many", timeout: long, wantErr: "beyond 1024"},
		{name: "huge", timeout: long, want: []gpu.GPU{Lost(0, self+" ended too early: bufio.Scanner: token too long: signal: killed")}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel() // some wait long
			got, err := child(t, tt.name, tt.timeout).Read(t.Context())
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Fatalf("error %v, want %q", err, tt.wantErr)
				}
				if isNone := tt.name == "no driver"; errors.Is(err, gpu.ErrNoDriver) != isNone {
					t.Errorf("%v is ErrNoDriver: %v", err, !isNone)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(gpu.Report{Driver: gpu.Driver{Version: "550.1"}, GPUs: tt.want}, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestChildMissing(t *testing.T) {
	_, err := Child{Path: "/nonexistent/berth"}.Read(t.Context())
	if err == nil || !strings.Contains(err.Error(), "run /nonexistent/berth") {
		t.Error(err)
	}
}

// A caller that gives up gets an error and no partial report.
func TestChildCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	got, err := child(t, "hangs", time.Minute).Read(ctx)
	if !errors.Is(err, context.Canceled) || got.GPUs != nil {
		t.Errorf("%v, %v", got, err)
	}
}

func TestCollect(t *testing.T) {
	got, err := Collect(t.Context(), scripts()["two"])
	if err != nil || len(got.GPUs) != 2 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := Collect(t.Context(), scripts()["no driver"]); !errors.Is(err, gpu.ErrNoDriver) {
		t.Error(err)
	}
}

func TestServeBrokenPipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.Close(), w.Close()); err != nil {
		t.Fatal(err)
	}
	if err := Serve(t.Context(), w, scripts()["two"]); err == nil {
		t.Error("a write without a reader was no error")
	}
}

func TestLinks(t *testing.T) {
	lost := healthy(3, 18, nil).GPU
	lost.Lost = "GPU is lost"
	readings := []*Reading{
		healthy(0, 0, map[string]int{"0000:01:00.0": 4}).GPU,
		healthy(1, 12, nil).GPU, // one of two ends that reports the link is enough
		healthy(2, 18, map[string]int{"0000:07:00.0": 2}).GPU,
		lost,
	}
	want := []gpu.Link{{A: 0, B: 1, NVLinks: 4}, {A: 1, B: 2, NVLinks: 12}}
	if d := cmp.Diff(want, joinLinks(readings)); d != "" {
		t.Error(d)
	}
}

func FuzzCollector(f *testing.F) {
	var seed bytes.Buffer
	if err := Serve(f.Context(), &seed, scripts()["two"]); err != nil {
		f.Fatal(err)
	}
	f.Add(seed.String())
	f.Add(`{"start":{"gpus":-1}}`)
	f.Fuzz(func(t *testing.T, text string) {
		var c collector
		for line := range strings.Lines(text) {
			var m Message
			if json.Unmarshal([]byte(line), &m) != nil || c.addMessage(m) != nil {
				return
			}
		}
		r, err := c.closeReport("missing")
		if err == nil && len(r.GPUs) != c.start.GPUs {
			t.Errorf("%d GPUs, announced %d", len(r.GPUs), c.start.GPUs)
		}
	})
}
