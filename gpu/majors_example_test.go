package gpu_test

import (
	"fmt"

	"github.com/berth-gpu/berth/gpu"
)

func ExampleParseDevices() {
	majors, err := gpu.ParseDevices("Character devices:\n  1 mem\n195 nvidia\n509 nvidia-uvm\n")
	if err != nil {
		fmt.Println(err)
	}
	for _, m := range majors {
		fmt.Println(m.Number, m.Name, gpu.IsAcceleratorMajor(m.Name))
	}
	// Output:
	// 1 mem false
	// 195 nvidia true
	// 509 nvidia-uvm true
}
