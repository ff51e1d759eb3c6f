package cli

import "testing"

// TestEndedLease: the lease of a killed holder is shown as ended until the next request, or the
// timer's discovery, removes it.
func TestEndedLease(t *testing.T) {
	t.Parallel()
	n := newDiscoveredNode(t, "dgx-h100")
	for _, next := range [][]string{{"discover", "--if-stale", "--processes", "--quiet"}, {"alloc", "8", "--", "true"}} {
		if got := n.berth("alloc", "1", "--", "sh", "-c", "kill -9 $PPID"); got.code != -9 {
			t.Fatalf("alloc isn't killed: %+v", got)
		}
		eventually(t, "an ended lease", func() bool { all := n.leases().Leases; return len(all) == 1 && all[0].Status == "ended" })
		n.berth("leases").is(0, `LEASE         GPU  REQUEST  HOLDER    USER  FOR  STATE
ID  0    1        alloc sh  root  AGE   ended

ID: its maker (process PID) is gone and left no container
`, "")
		n.berth(next...).is(0, "", "")
		n.berth("leases").is(0, "there are no leases and no waiting requests\n", "")
	}
	n.checkClean(t)
}
