package snapshot_test

import (
	"fmt"

	"github.com/berth-gpu/berth/gpu/snapshot"
)

func ExampleKey_Changes() {
	before := snapshot.Key{Driver: "550.163.01", Majors: map[string]uint32{"nvidia-uvm": 509}, MIG: []string{"gpu0: 1.0 2.0"}}
	now := snapshot.Key{Driver: "560.35.03", Majors: map[string]uint32{"nvidia-uvm": 510}}
	for _, change := range before.Changes(now) {
		fmt.Println(change)
	}
	// Output:
	// driver 550.163.01 is now 560.35.03
	// major of nvidia-uvm 509 is now 510
	// MIG layout (gpu0: 1.0 2.0) is now (none)
}
