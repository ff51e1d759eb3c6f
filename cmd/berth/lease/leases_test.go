package lease

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/cmd/berth/verbtest"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/isolation/ledger"
)

func TestFormatOrdinal(t *testing.T) {
	for n, want := range map[int]string{1: "1st", 2: "2nd", 3: "3rd", 4: "4th", 11: "11th", 12: "12th", 13: "13th", 21: "21st", 102: "102nd", 111: "111th"} {
		if got := formatOrdinal(n); got != want {
			t.Errorf("ordinal(%d) is %s, want %s", n, got, want)
		}
	}
}

func TestPrintLeases(t *testing.T) {
	device := func(uuid, index string) gpu.Device { return gpu.Device{UUID: uuid, Index: index} }
	first, lostOne, last := device("GPU-a", "0"), device("GPU-c", "2"), device("GPU-d", "3")
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	gone := leaseOf("123456789abc", false, now.Add(-50*time.Hour), last)
	gone.Note = "init (process 7) has ended and its cgroup is empty"
	lost := leaseOf("23456789abcd", true, now.Add(-time.Minute), lostOne)
	lost.Note, lost.State, lost.Owner.UID = "GPU 2 (GPU-c) is lost: GPU is lost", ledger.Reserved, 4000000000
	ends := now.Add(9 * time.Minute)
	list := leaseList{
		Leases: []listedLease{
			{leaseOf("0123456789ab", true, now.Add(-90*time.Minute), first, last), &ends}, {Status: gone}, {Status: lost},
		},
		Queue: []ledger.Waiter{{ID: "3456789abcde", Request: "a100:2", Owner: ledger.Owner{EntryPoint: "alloc", Name: "python"}, Since: now.Add(-time.Second)}},
	}
	list.Leases[0].Phase, list.Leases[1].Phase, list.Leases[2].Phase = ledger.Running, ledger.Ended, ledger.Starting
	var b strings.Builder
	if err := list.print(&b, now, 0); err != nil {
		t.Fatal(err)
	}
	verbtest.CompareGolden(t, "testdata/leases.txt", b.String())
	b.Reset()
	if err := (leaseList{}).print(&b, now, 0); err != nil {
		t.Fatal(err)
	}
	if b.String() != "there are no leases and no waiting requests\n" {
		t.Errorf("an empty ledger is shown as %q", b.String())
	}
}

// TestPrintLeasesNarrow: on a terminal of 80 columns no row is broken by the terminal.
func TestPrintLeasesNarrow(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	var devices []gpu.Device
	for _, index := range []string{"0", "1", "2", "3", "mlx5_0", "mlx5_1"} {
		devices = append(devices, gpu.Device{UUID: index, Index: index})
	}
	large := leaseOf("0123456789ab", true, now.Add(-90*time.Minute), devices...)
	large.Phase, large.Owner.Name = ledger.Running, "pretrain-llama3-70b"
	large.Request = "GPU-6f1d0a52-9c3e-4b1f-8a77-0c5b9d3e2f10,GPU-0c5b9d3e-8a77-4b1f-9c3e-6f1d0a522f10"
	large.Note = "GPU 2 (GPU-6f1d0a52-9c3e-4b1f-8a77-0c5b9d3e2f10) is lost: the driver does not list it any more"
	ends := now.Add(9 * time.Minute)
	list := leaseList{
		Leases: []listedLease{{large, &ends}},
		Queue:  []ledger.Waiter{{ID: "3456789abcde", Request: "h100:8,nics=auto", Owner: ledger.Owner{EntryPoint: "alloc", Name: "python"}, Since: now.Add(-time.Second)}},
	}
	for _, c := range []struct {
		name  string
		width int
	}{{"leases_80", 80}, {"leases_100", 100}, {"leases_whole", 0}} {
		t.Run(c.name, func(t *testing.T) {
			var b strings.Builder
			if err := list.print(&b, now, c.width); err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(b.String()) {
				if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); c.width > 0 && n > c.width {
					t.Errorf("%d columns: %s", n, line)
				}
			}
			verbtest.CompareGolden(t, "testdata/"+c.name+".txt", b.String())
		})
	}
}

// TestWatchLeases: --watch repeats the list until a signal ends it.
func TestWatchLeases(t *testing.T) {
	dir := t.TempDir()
	conf := filepath.Join(dir, "config.toml")
	testutil.Must(t, os.WriteFile(conf, []byte(fmt.Sprintf("state = %q\ndata = %q\n", dir+"/run", dir+"/lib")), 0o600))
	printed, stdout, err := os.Pipe()
	testutil.Must(t, err)
	defer printed.Close()
	defer stdout.Close()
	usual := os.Stdout
	os.Stdout = stdout
	t.Cleanup(func() { os.Stdout = usual })
	ctx, end := context.WithCancelCause(t.Context())
	app := &cli.App{
		Name: "berth", Flags: []cli.Flag{&cli.StringFlag{Name: "config"}}, Commands: []*cli.Command{LeasesCommand()},
		ExitErrHandler: func(*cli.Context, error) {},
	}
	done := make(chan error, 1)
	go func() { done <- app.RunContext(ctx, []string{"berth", "--config", conf, "leases", "--watch=0.1"}) }()
	const frame = "there are no leases and no waiting requests\n"
	got := make([]byte, 2*len(frame))
	testutil.Must(t, printed.SetReadDeadline(time.Now().Add(10*time.Second)))
	if _, err := io.ReadFull(printed, got); err != nil || string(got) != frame+frame {
		t.Errorf("%q is printed, %v", got, err)
	}
	end(verb.Interrupted{Signal: unix.SIGINT})
	if err := <-done; err == nil || err.Error() != "exit code 130" {
		t.Errorf("it ends with %v", err)
	}
}

func leaseOf(id string, live bool, since time.Time, devices ...gpu.Device) ledger.Status {
	return ledger.Status{Live: live, Lease: ledger.Lease{
		ID: id, State: ledger.Bound, Devices: devices, Request: "1", Since: since,
		Owner: ledger.Owner{EntryPoint: "run", Name: "trainer", UID: 0},
	}}
}

// TestAborted: a killed launch is no holder that anybody knows; other leases are shown until they are freed.
func TestAborted(t *testing.T) {
	status := func(door string, state ledger.State, phase ledger.Phase) ledger.Status {
		return ledger.Status{Lease: ledger.Lease{State: state, Owner: ledger.Owner{EntryPoint: door}}, Phase: phase}
	}
	for _, tt := range []struct {
		l    ledger.Status
		want bool
	}{
		{status("run", ledger.Reserved, ledger.Ended), true},
		{status("run", ledger.Reserved, ledger.Starting), false},
		{status("run", ledger.Bound, ledger.Ended), false},
		{status("alloc", ledger.Reserved, ledger.Ended), false},
	} {
		if got := wasAborted(tt.l); got != tt.want {
			t.Errorf("%s, %s, %s: %t", tt.l.Owner.EntryPoint, tt.l.State, tt.l.Phase, got)
		}
	}
}
