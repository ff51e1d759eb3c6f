package match_test

import (
	"errors"
	"fmt"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/match"
	"github.com/berth-gpu/berth/gpu/request"
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

func ExampleChoose() {
	inv := fourGPUs()
	held := []gpu.Device{inv.GPUs[0].Device()}

	r, err := request.Parse("l40s:2")
	if err != nil {
		fmt.Println(err)
		return
	}
	devices, err := match.Choose(inv, r, held)
	fmt.Println(devices[0].Index, devices[1].Index, err)

	r, _ = request.Parse("4")
	_, err = match.Choose(inv, r, held)
	fmt.Println(err, errors.Is(err, match.ErrBusy))

	// Output:
	// 2 3 <nil>
	// 4: 3 of 4 GPUs free, 4 asked true
}

func ExampleDivide() {
	inv := fourGPUs()
	rank, err := request.Parse("2")
	if err != nil {
		fmt.Println(err)
		return
	}
	r, err := request.NewGang([]request.Request{rank, rank})
	fmt.Println(r, err)
	devices, err := match.Choose(inv, r, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	ranks, err := match.Divide(inv, r, devices)
	for i, own := range ranks {
		fmt.Println("rank", i, "has GPUs", own[0].Index, own[1].Index, err)
	}
	// Output:
	// 2;2 <nil>
	// rank 0 has GPUs 0 1 <nil>
	// rank 1 has GPUs 2 3 <nil>
}
