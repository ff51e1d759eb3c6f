package sif_test

import (
	"fmt"
	"os"
	"runtime"

	"github.com/berth-gpu/berth/launcher/sif"
)

func ExampleRead() {
	f, err := os.Open("pytorch.sif")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer f.Close()
	image, err := sif.Read(f)
	if err == nil {
		err = image.CheckArch(runtime.GOARCH)
	}
	if err != nil {
		fmt.Printf("image %s: %v\n", f.Name(), err)
		return
	}
	fmt.Printf("squashfs with %s at byte %d\n", image.Root.Compressor, image.Root.Offset)
}
