package images

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/launcher/image"
)

// PruneCommand is berth prune.
func PruneCommand() *cli.Command {
	return &cli.Command{
		Name:  "prune",
		Usage: "remove layers that no image and no task needs",
		Description: "Also removes layers of layouts and archives, which are unpacked again when they are run. Layers that a\n" +
			"task uses or that are being pulled stay.",
		OnUsageError: verb.WrongUsage,
		Action:       pruneImages,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "all", Aliases: []string{"a"}, Usage: "also remove images that no task uses"},
			&cli.BoolFlag{Name: "dry-run", Usage: "only print what would be removed"},
			&cli.BoolFlag{Name: "force", Aliases: []string{"f"}, Usage: "for scripts of docker: berth prune never asks"},
			&cli.StringSliceFlag{Name: "filter", Usage: "`CONDITION` is until=TIME: only what is older, such as until=24h; or label=KEY[=VALUE] or label!=KEY[=VALUE]: only images with or without it; can be repeated"},
		},
	}
}

func pruneImages(c *cli.Context) error {
	if err := verb.CheckNoArguments(c); err != nil {
		return err
	}
	sel, err := pruneSelection(c.StringSlice("filter"), time.Now())
	if err != nil {
		return verb.WrongCommandLine(c, err.Error())
	}
	sel.All, sel.DryRun = c.Bool("all"), c.Bool("dry-run")
	done, err := removeImages(c, sel)
	for _, name := range done.Names {
		fmt.Println(name)
	}
	if err == nil || done.Layers > 0 {
		printFreed(done, sel.DryRun)
	}
	return err
}

// pruneSelection parses the filters of berth prune.
func pruneSelection(words []string, now time.Time) (sel image.Selection, err error) {
	for _, word := range words {
		key, value, err := parseFilter(word, "until", "label", "label!")
		switch {
		case err != nil:
			return sel, err
		case key == "until":
			if sel.Before, err = parseUntil(value, now); err != nil {
				return sel, err
			}
		default:
			l := image.ParseLabel(value)
			l.Not = key == "label!"
			sel.Labels = append(sel.Labels, l)
		}
	}
	return sel, nil
}

// parseUntil parses a duration before now ("24h"), a time of RFC 3339, or a date.
func parseUntil(value string, now time.Time) (time.Time, error) {
	if d, err := time.ParseDuration(value); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02"} {
		if at, err := time.ParseInLocation(layout, value, time.Local); err == nil {
			return at, nil
		}
	}
	return time.Time{}, fmt.Errorf("--filter until=%q is neither a time nor a duration, such as 24h or 2026-01-31", value)
}

// removeImages removes the selected images and layers, and prints warnings.
func removeImages(c *cli.Context, sel image.Selection) (image.Removed, error) {
	conf, err := verb.LoadConfig(c)
	if err != nil {
		return image.Removed{}, err
	}
	if err := verb.NeedTaskRoot(); err != nil {
		return image.Removed{}, err
	}
	sel.Tasks = tasksDir(conf)
	return removeSelected(c, conf, sel)
}

func printFreed(done image.Removed, dry bool) {
	word := "freed"
	if dry {
		word = "would free"
	}
	fmt.Fprintf(os.Stderr, "%s %s, %s\n", word, output.FormatSize(done.Freed), output.FormatCount(done.Layers, "layer"))
}

// removeSelected removes the selected images and layers of berth, or of the engine.
func removeSelected(c *cli.Context, conf berth.Config, sel image.Selection) (done image.Removed, err error) {
	other, err := backend.ChooseEngine(c, conf)
	if err != nil {
		return done, err
	}
	if other == nil {
		return backend.ImageStores(conf).Prune(sel)
	}
	req := other.Request
	req.Verb, req.Selection = "prune", &sel
	return done, other.Call(c.Context, req, &done, nil)
}

func tasksDir(conf berth.Config) string { return filepath.Join(conf.TaskData(), "tasks") }
