package image

import (
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/test/images/fake"
)

// Another process takes over the download of a layer that hangs. The one that hangs succeeds when
// its registry goes on, and no partial file is left.
func TestTakeOver(t *testing.T) {
	testutil.NeedRoot(t)
	images := write(t, makeLargeImage("1", 2))
	hangs, works := fake.Serve(t, images), fake.Serve(t, images)
	hold := make(chan struct{})
	hangs.Change(func(r *fake.Registry) { r.Hold = hold })
	s := Store{Dir: t.TempDir(), Stall: 500 * time.Millisecond}
	type result struct {
		dirs []string
		err  error
	}
	slow, begun := make(chan result, 1), make(chan struct{})
	var once sync.Once
	go func() {
		dirs, err := pullAndUnpackWith(t.Context(), s, hangs.Host+"/a:1", Search{}, func(Progress) { once.Do(func() { close(begun) }) })
		slow <- result{dirs, err}
	}()
	<-begun
	fast := make(chan result, 1)
	go func() {
		dirs, err := pullAndUnpackWith(t.Context(), s, works.Host+"/b:1", Search{}, nil)
		fast <- result{dirs, err}
	}()
	select {
	case got := <-fast:
		if got.err != nil {
			t.Fatal(got.err)
		}
		expectLargeLayers(t, got.dirs, 2, len("1"))
	case <-time.After(30 * time.Second):
		close(hold)
		t.Fatal("the second pull waits for the first")
	}
	select {
	case got := <-slow:
		t.Fatalf("the first pull has ended: %+v", got)
	default:
	}
	close(hold)
	got := <-slow
	if got.err != nil {
		t.Fatal(got.err)
	}
	expectLargeLayers(t, got.dirs, 2, len("1"))
	s.sweepUnfinished()
	if left, err := filepath.Glob(filepath.Join(s.Dir, "sha256/*")); err != nil || len(left) != 2 {
		t.Errorf("%q, %v", left, err)
	}
}

// A download that is slow but gets on isn't taken over, however long it takes.
func TestNoTakeOverWhileItGetsOn(t *testing.T) {
	w := unpacking{store: Store{Stall: 200 * time.Millisecond}, progress: &progress{}}
	home := t.TempDir()
	held, err := tryLock(home, lock.Exclusive, false)
	if err != nil || held == nil {
		t.Fatal(err)
	}
	defer held.Close()
	l := layer{blob: descriptor{Size: 1 << 40}}
	stop := w.showProgress(l, held)
	defer stop()
	watch := stallWatch{limit: 10 * time.Second}
	watch.stalled(home)
	first := watch.last.Mtim
	for last := time.Now().Add(30 * time.Second); watch.last.Mtim == first; watch.stalled(home) {
		if time.Now().After(last) {
			t.Fatal("the directory's time doesn't change")
		}
		w.progress.addBytes(l, minProgress)
		time.Sleep(time.Millisecond)
	}
}

// Of several that wait for the same layer, one takes it over; the others wait for that one.
func TestTakeOverOnce(t *testing.T) {
	home := filepath.Join(t.TempDir(), "layer")
	first, err := tryLock(home, lock.Exclusive, true)
	if err != nil || first == nil {
		t.Fatal(err)
	}
	defer first.Close()
	watch := stallWatch{limit: 1}
	for !watch.stalled(home) {
		time.Sleep(time.Millisecond)
	}
	if taken, err := takeOver(t.Context(), home, watch.last); !taken || err != nil {
		t.Fatal(taken, err)
	}
	next, err := tryLock(home, lock.Exclusive, true)
	if err != nil || next == nil {
		t.Fatal(err)
	}
	defer next.Close()
	if taken, err := takeOver(t.Context(), home, watch.last); taken || err != nil {
		t.Errorf("taken over from the one that took it over: %v, %v", taken, err)
	}
	if err := discardUnfinished(t.Context(), home, first, 0); !errors.Is(err, errTakenOver) {
		t.Errorf("the one that was too slow: %v", err)
	}
	if !lock.IsAt(int(next.Fd()), home) {
		t.Error("the layer of the next one is gone")
	}
}
