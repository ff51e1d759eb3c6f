package launcher_test

import (
	"context"
	"fmt"
	"os"

	"github.com/berth-gpu/berth/launcher"
	"github.com/berth-gpu/berth/launcher/spec"
)

// A command in a container of its own, without network and with half a gigabyte
// of memory; what it writes to its root is thrown away.
func ExampleRun() {
	code, err := launcher.Run(context.Background(), launcher.Options{
		Image: "oci:/srv/images/debian:bookworm",
		Settings: spec.Settings{
			Command:   []string{"sh", "-c", "cat /data/input | sha256sum"},
			Volumes:   []string{"/srv/data:/data:ro"},
			Network:   "none",
			Resources: spec.Resources{Memory: 512 << 20},
		},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}
