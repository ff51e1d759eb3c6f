package output

import (
	"strings"
	"testing"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// TestListIndexes: the devices of a gang's parts are listed like those of one lease.
func TestListIndexes(t *testing.T) {
	device := func(uuid, index string) gpu.Device { return gpu.Device{UUID: uuid, Index: index} }
	got := JoinIndexes([]gpu.Device{
		device("GPU-a", "0"), device("HCA-b", "mlx5_1"), device("HCA-a", "mlx5_0"),
		device("MIG-a", "1:0"), device("HCA-a", "mlx5_0"), device("v/c=a", "v/c=a"), device("HCA-c", "mlx5_2"),
	})
	if want := "0,1:0,v/c=a,mlx5_1,mlx5_0,mlx5_2"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestFormatHolder(t *testing.T) {
	for _, c := range []struct {
		name  string
		owner ledger.Owner
		want  string
	}{
		{"a name", ledger.Owner{EntryPoint: "run", Name: "trainer", Container: "4f0c"}, "run trainer"},
		{"a container", ledger.Owner{EntryPoint: "docker", Container: strings.Repeat("ab", 32)}, "docker abababababab"},
		{"a process", ledger.Owner{EntryPoint: "api", Process: ledger.Process{PID: 42}}, "api pid 42"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := FormatHolder(c.owner); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestFormatUser(t *testing.T) {
	for want, owner := range map[string]ledger.Owner{
		"root":         {},
		"-":            {UID: -1},
		"alice (root)": {Login: 1000, LoginUser: "alice", LoginFrom: "audit"},
		"alice (sudo)": {Login: 1000, LoginUser: "alice", LoginFrom: "sudo"},
	} {
		if got := FormatUser(owner); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
