package images

import (
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/launcher/engine"
	"github.com/berth-gpu/berth/launcher/image"
)

// RmiCommand is berth rmi.
func RmiCommand() *cli.Command {
	return &cli.Command{
		Name:      "rmi",
		Usage:     "remove images",
		ArgsUsage: "NAME…",
		Description: "NAME is an image's name, or the beginning of its id. If the image has other names, only the name is\n" +
			"removed. Layers that another image or a task needs stay. An error for one image doesn't stop the others.",
		OnUsageError: verb.WrongUsage,
		BashComplete: backend.CompleteImages,
		Action:       removeNamed,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "dry-run", Usage: "only print what would be removed"},
			&cli.BoolFlag{Name: "force", Aliases: []string{"f"}, Usage: "remove names that a task uses, and all names of an id; a missing image is no error"},
		},
	}
}

func removeNamed(c *cli.Context) error {
	if c.NArg() == 0 {
		return verb.WrongCommandLine(c, "rmi takes names of images; berth images shows them")
	}
	force := c.Bool("force")
	done, err := removeImages(c, image.Selection{Names: c.Args().Slice(), DryRun: c.Bool("dry-run"), Force: force})
	for _, name := range done.Names {
		fmt.Println("Untagged: " + name)
	}
	for _, digest := range done.Deleted {
		fmt.Println("Deleted: " + digest)
	}
	if done.Layers > 0 {
		printFreed(done, c.Bool("dry-run"))
	}
	failed := false
	for _, e := range engine.Parts(err) {
		verb.ReportError(e)
		failed = failed || !force || !errors.Is(e, image.ErrNotHere)
	}
	if failed {
		return verb.WithCode(verb.ExitFailure, nil)
	}
	return nil
}
