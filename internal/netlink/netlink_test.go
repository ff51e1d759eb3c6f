package netlink

import (
	"os"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func FuzzSort(f *testing.F) {
	f.Add([]byte{20, 0, 0, 0, unix.NLMSG_ERROR, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 237, 255, 255, 255})
	f.Add([]byte{16, 0, 0, 0, unix.NLMSG_DONE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		answers, done, err := (&Conn{}).sort(data)
		if err != nil && !done {
			t.Errorf("an error that ends nothing: %v", err)
		}
		for _, a := range answers {
			Attributes(a.Body)
		}
	})
}

// A list is whole, whatever is made and removed meanwhile.
func TestListWhileItChanges(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("BERTH_TEST_ROOT") == "1" {
			t.Fatal("needs root")
		}
		t.Skip("needs root")
	}
	runtime.LockOSThread() // and never unlock: the thread's namespace goes with it
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	list, err := Dial(unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer list.Close()
	bridge := func(name string) []byte {
		b := AppendText(make([]byte, unix.SizeofIfInfomsg), unix.IFLA_IFNAME, name)
		return AppendNested(b, unix.IFLA_LINKINFO, AppendText(nil, unix.IFLA_INFO_KIND, "bridge"))
	}
	for i := range 60 { // more than come in one datagram
		if _, err := list.Ask(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, bridge("stays"+string(rune('A'+i)))); err != nil {
			t.Fatal(err)
		}
	}
	change, err := Dial(unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var changing sync.WaitGroup
	changing.Go(func() {
		defer change.Close()
		for {
			select {
			case <-stop:
				return
			default:
				_, _ = change.Ask(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, bridge("comes"))
				_, _ = change.Ask(unix.RTM_DELLINK, 0, bridge("comes"))
			}
		}
	})
	for range 100 {
		all, err := list.List(unix.RTM_GETLINK, make([]byte, unix.SizeofIfInfomsg))
		if err != nil || len(all) < 61 {
			t.Errorf("%d interfaces, %v", len(all), err)
		}
	}
	close(stop)
	changing.Wait()
}
