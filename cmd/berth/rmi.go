package main

import (
	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/launcher/image"
)

func rmiCommand() *cli.Command {
	return &cli.Command{
		Name:                   "rmi",
		Usage:                  "remove images",
		ArgsUsage:              "NAME…",
		Description:            "NAME is an image's name, or the beginning of its id. Layers that another image or a task needs stay.",
		UseShortOptionHandling: true,
		OnUsageError:           wrongUsage,
		BashComplete:           completeImages,
		Action:                 rmi,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "dry-run", Usage: "only say what would be removed"},
		},
	}
}

func rmi(c *cli.Context) error {
	if c.NArg() == 0 {
		return wrong(c, "rmi takes names of images; berth images shows them")
	}
	return pruneImages(c, image.Selection{Names: c.Args().Slice(), DryRun: c.Bool("dry-run")})
}
