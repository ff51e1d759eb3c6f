package request_test

import (
	"fmt"

	"github.com/berth-gpu/berth/gpu/request"
)

func ExampleParse() {
	for _, text := range []string{"2", "H100:1", `"device=0,3"`, "2,mem>=40GB", "0"} {
		r, err := request.Parse(text)
		fmt.Println(r, err)
	}
	// Output:
	// 2 <nil>
	// h100 <nil>
	// device=0,3 <nil>
	// 2,mem>=40G <nil>
	//  request "0": asks for no GPU; the GPU with index 0 is "device=0"
}

func ExampleRequest_Features() {
	r, err := request.Parse("2,+imex=0-3,+gds")
	fmt.Println(r, r.Features(), err)
	// Output: 2,+gds,+imex=0-3 [gds imex=0-3] <nil>
}
