package backend

import (
	"context"
	"testing"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/isolation/ledger"
)

func TestFindLease(t *testing.T) {
	t.Setenv("PATH", "") // no engine is asked
	lease := func(id, door, container, name, index string) ledger.Status {
		return ledger.Status{Lease: ledger.Lease{
			ID: id, Owner: ledger.Owner{EntryPoint: door, Container: container, Name: name}, Devices: []gpu.Device{{UUID: "GPU-" + index, Index: index}},
		}}
	}
	user := func(id, name, index string) ledger.Status {
		l := lease(id, "alloc", "", name, index)
		l.Owner.UID, l.Owner.Cgroup = 4711, "/berth/alloc-12.34.56-0123456789ab"
		return l
	}
	view := ledger.View{Leases: []ledger.Status{
		lease("aa1100000000", "run", "1234567890ab", "trainer", "0"),
		lease("aa2200000000", "docker", "12ff00000000aaaa", "", "1"),
		lease("bb3300000000", "alloc", "", "sleep", "2"),
		lease("cc4400000000", "alloc", "", "sleep", "3"),
		lease("dd5500000000", "containerd", "bb", "", "4"),
		lease("ee6600000000", "docker", "ee00", "ff7700000000", "5"), // two that are called by the ids of each other
		lease("ff7700000000", "docker", "ff00", "ee6600000000", "6"),
		lease("009900000000", "docker", "0099", "ff00", "7"),
		user("a1a100000000", "trainer", "8"), // users name their leases as they like
		user("a2a200000000", "aa22", "9"),
		user("a3a300000000", "mine", "10"),
		lease("c1c100000000", "run", "", "c2c2", "11"),
		lease("c2c200000000", "docker", "c2ff", "", "12"),
	}}
	for _, tt := range []struct{ word, want string }{
		{"aa1100000000", "aa1100000000"},
		{"aa1", "aa1100000000"},
		{"trainer", "aa1100000000"},
		{"1234567890ab", "aa1100000000"},
		{"1234", "aa1100000000"},
		{"12ff00000000aaaa", "aa2200000000"},
		{"12f", "aa2200000000"},
		{"bb", "dd5500000000"}, // a whole id comes before the beginning of another
		{"bb3", "bb3300000000"},
		{"sleep", "it matches 2 leases: bb3300000000 (alloc sleep, GPU 2), cc4400000000 (alloc sleep, GPU 3); give the id of one"},
		{"12", "it matches 2 leases: aa1100000000 (run trainer, GPU 0), aa2200000000 (docker 12ff00000000, GPU 1); give the id of one"},
		{"train", "no such lease (did you mean trainer?)"}, // the beginning of a name isn't enough
		{"ee6600000000", "ee6600000000"}, // no name hides an id
		{"ff7700000000", "ff7700000000"},
		{"ff00", "ff7700000000"},
		{"", "no such lease"},
		{"aa22", "aa2200000000"}, // no user's name hides the beginning of an id
		{"mine", "a3a300000000"},
		{"c2c2", "it matches 2 leases: c1c100000000 (run c2c2, GPU 11), c2c200000000 (docker c2ff, GPU 12); give the id of one"},
	} {
		l, err := FindLease(context.Background(), view, tt.word)
		got := l.ID
		if err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("find %q: %s, want %s", tt.word, got, tt.want)
		}
	}
}
