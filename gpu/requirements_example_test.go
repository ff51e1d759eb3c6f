package gpu_test

import (
	"fmt"

	"github.com/berth-gpu/berth/gpu"
)

func ExampleCheckRequirements() {
	inv := gpu.Inventory{
		Driver: gpu.Driver{Version: "550.163.01", CUDA: "12.4"},
		GPUs:   []gpu.GPU{{UUID: "GPU-8f4a", Model: "NVIDIA H100 80GB HBM3", ComputeCapability: "9.0"}},
	}
	leased := inv.Devices()
	fmt.Println(gpu.CheckRequirements([]string{"NVIDIA_REQUIRE_CUDA=cuda>=12.8 brand=nvidia,driver>=550"}, inv, leased))
	fmt.Println(gpu.CheckRequirements([]string{"NVIDIA_REQUIRE_CUDA=cuda>=12.8"}, inv, leased))
	// Output:
	// <nil>
	// image asks for "NVIDIA_REQUIRE_CUDA=cuda>=12.8"; there is cuda 12.4, driver 550.163.01 and GPU 0 with arch 9.0, brand nvidia
}

func ExampleRequest_Features() {
	r, err := gpu.ParseRequest("2,+imex=0-3,+gds")
	fmt.Println(r, r.Features(), err)
	// Output: 2,+gds,+imex=0-3 [gds imex=0-3] <nil>
}
