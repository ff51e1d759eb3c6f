package netlink

import (
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
