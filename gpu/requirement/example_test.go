package requirement_test

import (
	"fmt"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/requirement"
)

func ExampleCheck() {
	inv := gpu.Inventory{
		Driver: gpu.Driver{Version: "550.163.01", CUDA: "12.4"},
		GPUs:   []gpu.GPU{{UUID: "GPU-8f4a", Model: "NVIDIA H100 80GB HBM3", ComputeCapability: "9.0"}},
	}
	leased := inv.Devices()
	fmt.Println(requirement.Check([]string{"NVIDIA_REQUIRE_CUDA=cuda>=12.8 brand=nvidia,driver>=550"}, inv, leased))
	fmt.Println(requirement.Check([]string{"NVIDIA_REQUIRE_CUDA=cuda>=12.8"}, inv, leased))
	// Output:
	// <nil>
	// image asks for "NVIDIA_REQUIRE_CUDA=cuda>=12.8"; there is cuda 12.4, driver 550.163.01 and GPU 0 with arch 9.0, brand nvidia
}
