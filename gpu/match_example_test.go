package gpu_test

import (
	"errors"
	"fmt"

	"github.com/berth-gpu/berth/gpu"
)

// Four GPUs, two on each NUMA node.
func fourGPUs() gpu.Inventory {
	inv := gpu.Inventory{}
	for i := range 4 {
		inv.GPUs = append(inv.GPUs, gpu.GPU{UUID: fmt.Sprintf("GPU-%d", i), Index: i, Model: "NVIDIA L40S", Memory: 46068 << 20})
	}
	for _, pair := range [][2]int{{0, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3}, {2, 3}} {
		path := gpu.PathSYS
		if pair[0]/2 == pair[1]/2 {
			path = gpu.PathNODE
		}
		inv.Links = append(inv.Links, gpu.Link{A: pair[0], B: pair[1], PCIe: path})
	}
	return inv
}

func ExampleInventory_Match() {
	inv := fourGPUs()
	held := []gpu.Device{inv.GPUs[0].Device()}

	request, err := gpu.ParseRequest("l40s:2")
	if err != nil {
		fmt.Println(err)
		return
	}
	devices, err := inv.Match(request, held)
	fmt.Println(devices[0].Index, devices[1].Index, err)

	request, _ = gpu.ParseRequest("4")
	_, err = inv.Match(request, held)
	fmt.Println(err, errors.Is(err, gpu.ErrBusy))

	// Output:
	// 2 3 <nil>
	// 4: 3 of 4 GPUs free, 4 asked true
}

func ExampleParseRequest() {
	for _, text := range []string{"2", "H100:1", `"device=0,3"`, "2,mem>=40GB", "0"} {
		request, err := gpu.ParseRequest(text)
		fmt.Println(request, err)
	}
	// Output:
	// 2 <nil>
	// h100 <nil>
	// device=0,3 <nil>
	// 2,mem>=40G <nil>
	//  request "0": asks for no GPU; the GPU with index 0 is "device=0"
}

func ExampleGangRequest() {
	inv := fourGPUs()
	rank, err := gpu.ParseRequest("2")
	if err != nil {
		fmt.Println(err)
		return
	}
	request, err := gpu.GangRequest([]gpu.Request{rank, rank})
	fmt.Println(request, err)
	devices, err := inv.Match(request, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	ranks, err := inv.Divide(request, devices)
	for i, own := range ranks {
		fmt.Println("rank", i, "has GPUs", own[0].Index, own[1].Index, err)
	}
	// Output:
	// 2;2 <nil>
	// rank 0 has GPUs 0 1 <nil>
	// rank 1 has GPUs 2 3 <nil>
}
