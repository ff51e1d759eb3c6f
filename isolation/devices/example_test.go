package devices_test

import (
	"fmt"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/isolation/devices"
)

// The device rules of a container that holds the first GPU, as a program of the kernel.
func ExampleCompile() {
	p, err := devices.Compile([]edits.Rule{
		{Type: "a", Major: edits.Any, Minor: edits.Any, Access: "rwm"},
		{Allow: true, Type: "c", Major: 195, Minor: 0, Access: "rw"},
	})
	fmt.Println(len(p), "instructions,", err)
	// Output: 17 instructions, <nil>
}

// The meaning of a list, without a kernel.
func ExampleAllowed() {
	rules := []edits.Rule{
		{Allow: true, Type: "c", Major: 195, Minor: edits.Any, Access: "rw"},
		{Type: "c", Major: 195, Minor: 1, Access: "w"},
	}
	for _, access := range []string{"r", "w", "rw"} {
		fmt.Println(access, devices.Allowed(rules, "c", 195, 1, access))
	}
	// Output:
	// r true
	// w false
	// rw false
}
