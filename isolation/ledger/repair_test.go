package ledger

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/internal/testutil"
)

// damages are the ways in which a ledger can become unusable.
var damages = []struct {
	name  string
	spoil func(t *testing.T, l *Ledger)
	want  error
}{
	{"empty", func(t *testing.T, l *Ledger) { writeFile(t, l.store.ledgerPath(), "") }, ErrCorrupt},
	{"garbage", func(t *testing.T, l *Ledger) { writeFile(t, l.store.ledgerPath(), "\x00\x01\n{") }, ErrCorrupt},
	{"truncated", func(t *testing.T, l *Ledger) { edit(t, l, func(b []byte) []byte { return b[:len(b)-20] }) }, ErrCorrupt},
	{"cut in the header", func(t *testing.T, l *Ledger) { edit(t, l, func(b []byte) []byte { return b[:30] }) }, ErrCorrupt},
	{"edited by hand", func(t *testing.T, l *Ledger) {
		edit(t, l, func(b []byte) []byte { return bytes.Replace(b, []byte(`"door": "api"`), []byte(`"door": "xyz"`), 1) })
	}, ErrCorrupt},
	{"sealed, but without sense", func(t *testing.T, l *Ledger) {
		writeFile(t, l.store.ledgerPath(), string(addHeader(kindLedger, []byte("{}\n"))))
	}, ErrCorrupt},
	{"another kind of file", func(t *testing.T, l *Ledger) {
		writeFile(t, l.store.ledgerPath(), string(addHeader(kindLease, []byte(openLeases+openLine+closeFile))))
	}, ErrCorrupt},
	{"huge", func(t *testing.T, l *Ledger) {
		if err := os.Truncate(l.store.ledgerPath(), maxFile+1); err != nil {
			t.Fatal(err)
		}
	}, ErrCorrupt},
	{"future version", func(t *testing.T, l *Ledger) {
		edit(t, l, func(b []byte) []byte { return bytes.Replace(b, []byte(`"version":1`), []byte(`"version":2`), 1) })
	}, ErrFuture},
	{"writable by the group", func(t *testing.T, l *Ledger) { chmod(t, l.store.ledgerPath(), 0o664) }, ErrOwnership},
	{"writable by all", func(t *testing.T, l *Ledger) { chmod(t, l.store.ledgerPath(), 0o646) }, ErrOwnership},
	{"directory writable by all", func(t *testing.T, l *Ledger) { chmod(t, l.store.dir, 0o777) }, ErrOwnership},
	{"receipts writable by the group", func(t *testing.T, l *Ledger) { chmod(t, l.store.receiptsDir(), 0o775) }, ErrOwnership},
	{"lock writable by all", func(t *testing.T, l *Ledger) { chmod(t, l.store.lockPath(), 0o666) }, ErrOwnership},
	{"another user's", func(t *testing.T, l *Ledger) { chown(t, l.store.ledgerPath()) }, ErrOwnership},
	{"another user's directory", func(t *testing.T, l *Ledger) { chown(t, l.store.dir) }, ErrOwnership},
	{"symbolic link", func(t *testing.T, l *Ledger) {
		moved := l.store.ledgerPath() + ".moved"
		if err := errors.Join(os.Rename(l.store.ledgerPath(), moved), os.Symlink(moved, l.store.ledgerPath())); err != nil {
			t.Fatal(err)
		}
	}, ErrOwnership},
	{"FIFO", func(t *testing.T, l *Ledger) {
		if err := errors.Join(os.Remove(l.store.ledgerPath()), unix.Mkfifo(l.store.ledgerPath(), 0o644)); err != nil {
			t.Fatal(err)
		}
	}, ErrOwnership},
	{"directory instead of the file", func(t *testing.T, l *Ledger) {
		if err := errors.Join(os.Remove(l.store.ledgerPath()), os.Mkdir(l.store.ledgerPath(), 0o755)); err != nil {
			t.Fatal(err)
		}
	}, ErrOwnership},
}

func edit(t *testing.T, l *Ledger, change func([]byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(l.store.ledgerPath())
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, l.store.ledgerPath(), string(change(b)))
}

func chmod(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func chown(t *testing.T, path string) {
	t.Helper()
	testutil.NeedRoot(t)
	if err := os.Chown(path, 12345, 12345); err != nil {
		t.Fatal(err)
	}
}

// Every call that relies on the ledger refuses a damaged one and changes nothing, and Repair
// restores exactly the leases whose holders live.
func TestDamageIsRefusedAndRepaired(t *testing.T) {
	for _, tt := range damages {
		t.Run(tt.name, func(t *testing.T) {
			w := newFake()
			l := in(t, w)
			w.procs[50], w.procs[51] = fakeProcess{start: 5}, fakeProcess{start: 6}
			live, dead := ask(t, "2"), ask(t, "1g.10gb")
			live.Owner.Process = Process{PID: 50, Start: 5, Namespace: 7}
			dead.Owner.Process = Process{PID: 51, Start: 6, Namespace: 7}
			kept, gone := mustAcquire(t, l, live), mustAcquire(t, l, dead)
			delete(w.procs, 51)

			tt.spoil(t, l)
			for name, call := range map[string]func() error{
				"acquire": func() error { _, err := l.Acquire(t.Context(), ask(t, "1")); return err },
				"wait":    func() error { a := ask(t, "1"); a.Wait = -1; _, err := l.Acquire(t.Context(), a); return err },
				"release": func() error { return l.Release(t.Context(), kept.ID) },
				"bind":    func() error { return l.Bind(t.Context(), kept.ID, Owner{Process: w.me.Process}) },
			} {
				err := call()
				var file *FileError
				if !errors.Is(err, tt.want) || !errors.As(err, &file) || !strings.HasPrefix(file.Path, l.store.dir) {
					t.Errorf("%s: %v, want %v", name, err, tt.want)
				}
			}

			r, err := l.Repair(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if !errors.Is(r.Reason, tt.want) {
				if tt.name != "lock writable by all" { // the ledger's file was replaced before this process read it
					t.Errorf("reason %v, want %v", r.Reason, tt.want)
				}
			}
			if diff := cmp.Diff([]Status{{Lease: kept, Live: true, Making: true, Phase: Running}}, liveIDs(r.View)); diff != "" {
				t.Error(diff)
			}
			if len(r.Dropped) > 0 && r.Dropped[0].Lease.ID != gone.ID {
				t.Errorf("dropped %+v", r.Dropped)
			}
			mustAcquire(t, l, ask(t, "4"))
			if _, err := l.Acquire(t.Context(), ask(t, "1")); !errors.Is(err, ErrBusy) {
				t.Errorf("the kept lease's devices were given away: %v", err)
			}
			if r, err := l.Repair(t.Context()); err != nil || r.Reason != nil || r.Moved != "" {
				t.Errorf("repaired again: %+v, %v", r, err)
			}
		})
	}
}

func liveIDs(v View) []Status {
	var live []Status
	for _, s := range v.Leases {
		if s.Live {
			live = append(live, s)
		}
	}
	return live
}

func TestMissingLedgerIsRebuilt(t *testing.T) {
	l := fresh(t)
	lease := mustAcquire(t, l, ask(t, "5"))
	if err := os.Remove(l.store.ledgerPath()); err != nil {
		t.Fatal(err)
	}
	if v := mustView(t, l); len(v.Leases) != 1 || v.Leases[0].ID != lease.ID {
		t.Errorf("view: %+v", v)
	}
	if _, err := l.Acquire(t.Context(), ask(t, "2")); !errors.Is(err, ErrBusy) {
		t.Errorf("leased devices were given away: %v", err)
	}
	if got, ok, err := l.Get(lease.ID); !ok || err != nil || !cmp.Equal(got, lease) {
		t.Errorf("got %+v, %v, %v", got, ok, err)
	}
}

func TestRepairWithDamagedReceipts(t *testing.T) {
	l := fresh(t)
	a, b := mustAcquire(t, l, ask(t, "1")), mustAcquire(t, l, ask(t, "1"))
	writeFile(t, l.store.receiptPath(a.ID), "garbage")
	writeFile(t, l.store.receiptPath("0123456789ab"), "")
	writeFile(t, l.store.receiptPath("ba9876543210")+".tmp", "half")
	edit(t, l, func(text []byte) []byte { return bytes.Replace(text, []byte("api"), []byte("xyz"), 1) })
	r, err := l.Repair(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// a's receipt is lost, the damaged ledger still names the lease, and its holder lives.
	var ids []string
	for _, s := range r.Leases {
		ids = append(ids, s.ID)
	}
	if len(ids) != 2 || !strings.Contains(strings.Join(ids, " "), a.ID) || !strings.Contains(strings.Join(ids, " "), b.ID) {
		t.Errorf("kept %v, want %v and %v", ids, a.ID, b.ID)
	}
	if len(r.Dropped) != 2 || !strings.HasPrefix(r.Moved, l.store.ledgerPath()+".bad-") {
		t.Errorf("dropped %+v, moved to %q", r.Dropped, r.Moved)
	}
	left, err := filepath.Glob(filepath.Join(l.store.receiptsDir(), "*"))
	if err != nil || len(left) != 2 {
		t.Errorf("receipts left: %v, %v", left, err)
	}
}

// Of two receipts for one device the later one counts.
func TestRepairPrefersTheLaterLease(t *testing.T) {
	w := newFake()
	l := in(t, w)
	first := mustAcquire(t, l, ask(t, "device=0"))
	receipt, err := os.ReadFile(l.store.receiptPath(first.ID))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Release(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	w.uptime += process.Tick
	second := mustAcquire(t, l, ask(t, "device=0"))
	writeFile(t, l.store.receiptPath(first.ID), string(receipt)) // as if the process had been killed before it removed the receipt
	writeFile(t, l.store.ledgerPath(), "")
	r, err := l.Repair(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Leases) != 1 || r.Leases[0].ID != second.ID || len(r.Dropped) != 1 || r.Dropped[0].Lease.ID != first.ID {
		t.Errorf("kept %+v, dropped %+v", r.Leases, r.Dropped)
	}
}

func TestRepairOfIntactLedger(t *testing.T) {
	l := fresh(t)
	lease := mustAcquire(t, l, ask(t, "1"))
	r, err := l.Repair(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := Repaired{View: View{Leases: []Status{{Lease: lease, Live: true, Making: true, Phase: Running}}, Queue: []Waiter{}}}
	if diff := cmp.Diff(want, r); diff != "" {
		t.Error(diff)
	}
}
