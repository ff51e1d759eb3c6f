package netdev

import (
	"runtime"
	"strconv"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
)

// A list is whole, whatever is made and removed while it is read.
func TestRetryDump(t *testing.T) {
	testutil.NeedRoot(t)
	runtime.LockOSThread() // and never unlocked: the thread's namespace ends with it
	testutil.Must(t, unix.Unshare(unix.CLONE_NEWNET))
	list, err := OpenRoutes()
	testutil.Must(t, err)
	defer list.Close()
	bridge := func(name string) netlink.Link {
		return &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}
	}
	const many = 60 // more than come in one datagram
	for i := range many {
		testutil.Must(t, list.LinkAdd(bridge("stays"+strconv.Itoa(i))))
	}
	change, err := OpenRoutes()
	testutil.Must(t, err)
	stop := make(chan struct{})
	var changing sync.WaitGroup
	changing.Go(func() {
		defer change.Close()
		for {
			select {
			case <-stop:
				return
			default:
				_ = change.LinkAdd(bridge("comes"))
				_ = change.LinkDel(bridge("comes"))
			}
		}
	})
	for range 100 {
		all, err := RetryDump(list.LinkList)
		if err != nil || len(all) < many+1 {
			t.Errorf("%d interfaces, %v", len(all), err)
		}
	}
	close(stop)
	changing.Wait()
}
