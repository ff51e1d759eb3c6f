package run

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/launcher"
	"github.com/berth-gpu/berth/launcher/image"
)

// imageHelp lists the kinds of image references, for the help of every verb that takes one.
const imageHelp = `IMAGE is one of
  debian:13, registry.example/team/app@sha256:…   an image of a registry, as docker names it
  DIR, FILE                                       one of these; the kind is detected:
  dir:DIR, oci:DIR[:TAG]                          a root file system, an OCI image layout
  docker-archive:FILE[:NAME]                      what docker save and podman save write
  oci-archive:FILE[:TAG]                          an OCI image layout in a tar archive`

// pullFlags are the flags of berth run that are about pulling.
func pullFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "pull", Usage: "pull the image `WHEN` it is missing, always, or never", Value: "missing"},
		backend.PlatformFlag(),
	}
}

// readPullFlags reads pullFlags.
func readPullFlags(c *cli.Context, o *launcher.Options) (err error) {
	if o.Search.Pull, err = image.ParsePull(c.String("pull")); err != nil {
		return fmt.Errorf("--%w", err)
	}
	o.Search.Platform = c.String("platform")
	return nil
}
