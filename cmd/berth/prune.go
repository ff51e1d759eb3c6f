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
		UseShortOptionHandling: true,
		OnUsageError:           wrongUsage,
		Action:                 prune,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "all", Aliases: []string{"a"}, Usage: "remove images, too, that no task uses"},
			&cli.BoolFlag{Name: "dry-run", Usage: "only say what would be removed"},
			&cli.BoolFlag{Name: "force", Aliases: []string{"f"}, Usage: "do so without asking, as is always done"},
			&cli.StringFlag{Name: "filter", Usage: "`CONDITION` is until=TIME: only what is older, such as until=24h"},
		},
	}
}

func prune(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	sel := image.Selection{All: c.Bool("all"), DryRun: c.Bool("dry-run")}
	var err error
	if sel.Before, err = until(c.String("filter"), time.Now()); err != nil {
		return wrong(c, err.Error())
	}
	return pruneImages(c, sel)
}

// until reads "until=24h", or a moment in the format of RFC 3339 or of a day.
func until(filter string, now time.Time) (time.Time, error) {
	if filter == "" {
		return time.Time{}, nil
	}
	key, value, _ := strings.Cut(filter, "=")
	if key != "until" {
		return time.Time{}, fmt.Errorf("--filter %q is not known: there is until=TIME", filter)
	}
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

// pruneImages removes what is selected, and says so.
func pruneImages(c *cli.Context, sel image.Selection) error {
	conf, err := config(c)
	if err != nil {
		return err
	}
	if err := needRoot(); err != nil {
		return err
	}
	sel.Tasks = tasksOf(conf)
	done, err := pruneHere(c, conf, sel)
	for _, name := range done.Names {
		fmt.Println(name)
	}
	if err == nil || done.Layers > 0 {
		word := "freed"
		if sel.DryRun {
			word = "would free"
		}
		fmt.Fprintf(os.Stderr, "%s %s, %s\n", word, megabytes(done.Freed), plural(done.Layers, "layer"))
	}
	return err
}

// pruneHere removes images of berth, or of the engine.
func pruneHere(c *cli.Context, conf berth.Config, sel image.Selection) (done image.Removed, err error) {
	other, err := engineOf(c, conf)
	if err != nil {
		return done, err
	}
	if other == nil {
		return store(conf).Prune(sel)
	}
	req := other.request
	req.Verb, req.Selection = "prune", &sel
	return done, other.call(c.Context, req, &done, nil)
}

func tasksOf(conf berth.Config) string { return filepath.Join(conf.Data, "tasks") }
