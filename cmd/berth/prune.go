package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/launcher/image"
)

func pruneCommand() *cli.Command {
	return &cli.Command{
		Name:  "prune",
		Usage: "remove layers that no image and no task needs",
		Description: "Also those of layouts and archives, which are unpacked again when they are run. What a task uses stays,\n" +
			"and so does what is being pulled.",
		OnUsageError: wrongUsage,
		Action:       pruneImages,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "all", Aliases: []string{"a"}, Usage: "remove images, too, that no task uses"},
			&cli.BoolFlag{Name: "dry-run", Usage: "only say what would be removed"},
			&cli.BoolFlag{Name: "force", Aliases: []string{"f"}, Usage: "do so without asking, as is always done"},
			&cli.StringSliceFlag{Name: "filter", Usage: "`CONDITION` is until=TIME: only what is older, such as until=24h; or label=KEY[=VALUE] or label!=KEY[=VALUE]: only images with or without it; can be repeated"},
		},
	}
}

func pruneImages(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	sel, err := pruneSelection(c.StringSlice("filter"), time.Now())
	if err != nil {
		return wrongCommandLine(c, err.Error())
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

// pruneSelection reads filters.
func pruneSelection(words []string, now time.Time) (sel image.Selection, err error) {
	for _, word := range words {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "until":
			sel.Before, err = parseUntil(value, now)
		case "label", "label!":
			l := image.ParseLabel(value)
			l.Not = key == "label!"
			sel.Labels = append(sel.Labels, l)
		default:
			err = unknownFilter(key, []string{"until", "label", "label!"})
		}
		if err == nil && value == "" {
			err = fmt.Errorf("filter %q is without a value: %s=VALUE", key, key)
		}
		if err != nil {
			return sel, err
		}
	}
	return sel, nil
}

// unknownFilter returns the error for a filter that does not exist.
func unknownFilter(key string, known []string) error {
	return fmt.Errorf("there is no filter %q%s: %s are known", key, didYouMean(key, known), strings.Join(known, ", "))
}

// parseUntil reads "24h", or a moment in the format of RFC 3339 or of a day.
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

// removeImages removes what is selected.
func removeImages(c *cli.Context, sel image.Selection) (image.Removed, error) {
	conf, err := loadConfig(c)
	if err != nil {
		return image.Removed{}, err
	}
	if err := needRoot(); err != nil {
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
	fmt.Fprintf(os.Stderr, "%s %s, %s\n", word, formatSize(done.Freed), countOf(done.Layers, "layer"))
}

// removeSelected removes images of berth, or of the engine.
func removeSelected(c *cli.Context, conf berth.Config, sel image.Selection) (done image.Removed, err error) {
	other, err := engineOf(c, conf)
	if err != nil {
		return done, err
	}
	if other == nil {
		return imageStore(conf).Prune(sel)
	}
	req := other.request
	req.Verb, req.Selection = "prune", &sel
	return done, other.callEngine(c.Context, req, &done, nil)
}

func tasksDir(conf berth.Config) string { return filepath.Join(conf.Data, "tasks") }
