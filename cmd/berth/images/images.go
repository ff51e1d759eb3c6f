// Package images has the verbs for images and for the disk space of images and tasks: pull, images, rmi, prune,
// login, logout and system.
package images

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/othertools"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/launcher/image"
)

// ListCommand is berth images.
func ListCommand() *cli.Command {
	return &cli.Command{
		Name:         "images",
		Usage:        "list pulled images",
		ArgsUsage:    "[NAME…]",
		Description:  "Shows pulled images; directories and layouts are used where they are. Sizes are of unpacked files;\nlayers that images share are on disk once and count in each.",
		OnUsageError: verb.WrongUsage,
		Action:       listImages,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "print the ids alone"},
			&cli.StringSliceFlag{Name: "filter", Aliases: []string{"f"}, Usage: "show images that match `FILTER`: label=KEY[=VALUE], or reference=PATTERN such as 'debian*'; can be repeated"},
			&cli.BoolFlag{Name: "digests", Usage: "show the digests that registries use"},
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
			output.FormatFlag("ID", "Size"),
		},
	}
}

func listImages(c *cli.Context) error {
	conf, err := verb.LoadConfig(c)
	if err != nil {
		return err
	}
	conditions := c.StringSlice("filter")
	for _, pattern := range c.Args().Slice() {
		conditions = append(conditions, "reference="+pattern)
	}
	fit, err := imageFilters(conditions)
	if err != nil {
		return verb.WrongCommandLine(c, err.Error())
	}
	all, unread, err := backend.ReadImages(c, conf)
	if err != nil {
		return err
	}
	none := len(all) == 0
	if none && unread != nil {
		return unread // nil if all images could be read
	}
	all = slices.DeleteFunc(all, func(i image.Summary) bool { return !fit(i) })
	if word := c.Args().First(); len(all) == 0 && word != "" && othertools.Groups()["image"][word] != "" {
		return verb.UsageError{Err: fmt.Errorf("no image is called %q; berth %s", word, othertools.Groups()["image"][word])}
	}
	switch {
	case c.Bool("quiet") && !c.Bool("json"):
		err = printIDs(os.Stdout, all)
	case output.HasFormat(c):
		err = printImagesFormatted(os.Stdout, c.String("format"), all, time.Now())
	case c.Bool("json"):
		if all == nil {
			all = []image.Summary{}
		}
		err = output.PrintJSON(os.Stdout, all)
	case none:
		_, err = fmt.Fprintln(os.Stdout, "there are no images; berth pull gets them")
	default:
		err = printImages(os.Stdout, all, c.Bool("digests"), time.Now())
	}
	if err != nil {
		return err
	}
	return unread
}

// parseFilter splits a filter, KEY=VALUE, whose key has to be one of the known ones.
func parseFilter(word string, known ...string) (key, value string, err error) {
	key, value, _ = strings.Cut(word, "=")
	if !slices.Contains(known, key) {
		return "", "", verb.UnknownFilter(key, known)
	}
	if value == "" {
		return "", "", fmt.Errorf("filter %q has no value: %s=VALUE", key, key)
	}
	return key, value, nil
}

// imageFilters parses filters. An image matches if it has all labels and one of the patterns
// matches its name.
func imageFilters(words []string) (fit func(image.Summary) bool, err error) {
	var labels []image.Label
	var patterns []string
	for _, word := range words {
		key, value, err := parseFilter(word, "label", "reference")
		switch {
		case strings.HasPrefix(word, "dangling="):
			return nil, errors.New("no image is without a name; berth prune removes layers that nothing needs")
		case err != nil:
			return nil, err
		case key == "label":
			labels = append(labels, image.ParseLabel(value))
		default:
			if _, err := path.Match(value, ""); err != nil {
				return nil, fmt.Errorf("filter reference=%s: %w", value, err)
			}
			patterns = append(patterns, value)
		}
	}
	return func(i image.Summary) bool {
		return !slices.ContainsFunc(labels, func(l image.Label) bool { return !l.Matches(i.Labels) }) &&
			(len(patterns) == 0 || slices.ContainsFunc(patterns, func(p string) bool { return matchesReference(i, p) }))
	}, nil
}

// matchesReference reports whether a pattern matches one of an image's names, with or without the tag.
func matchesReference(i image.Summary, pattern string) bool {
	for _, name := range []string{i.Short, i.Name} {
		names := []string{name}
		if at := strings.LastIndexByte(name, ':'); at > strings.LastIndexByte(name, '/') {
			names = append(names, name[:at])
		}
		for _, n := range names {
			if ok, err := path.Match(pattern, n); err == nil && ok {
				return true
			}
		}
	}
	return false
}

func printIDs(w io.Writer, all []image.Summary) error {
	seen := map[string]bool{}
	for _, i := range all {
		if seen[i.ID] {
			continue
		}
		seen[i.ID] = true
		if _, err := fmt.Fprintln(w, output.ShortenDigest(i.ID)); err != nil {
			return err
		}
	}
	return nil
}

func printImages(w io.Writer, all []image.Summary, digests bool, now time.Time) error {
	own := "linux/" + runtime.GOARCH
	others := false
	for _, i := range all {
		others = others || i.Platform != own
	}
	row := func(name, id, platform, created, size, digest string) (cells []string) {
		cells = []string{name, id}
		if others {
			cells = append(cells, platform)
		}
		cells = append(cells, created, size)
		if digests {
			cells = append(cells, digest)
		}
		return cells
	}
	rows := [][]string{row("NAME", "ID", "PLATFORM", "CREATED", "SIZE", "DIGEST")}
	for _, i := range all {
		rows = append(rows, row(i.Short, output.ShortenDigest(i.ID), i.Platform, formatCreated(i, now), formatImageSize(i), i.Digest))
	}
	return output.PrintTable(w, rows)
}

// imageColumns returns docker's fields of images --format, and the platform.
func imageColumns() []output.Column {
	return []output.Column{
		{Name: "Repository", Heading: "REPOSITORY"},
		{Name: "Tag", Heading: "TAG"},
		{Name: "ID", Heading: "IMAGE ID"},
		{Name: "Digest", Heading: "DIGEST"},
		{Name: "CreatedSince", Heading: "CREATED"},
		{Name: "CreatedAt", Heading: "CREATED AT"},
		{Name: "Size", Heading: "SIZE"},
		{Name: "Platform", Heading: "PLATFORM"},
	}
}

// printImagesFormatted prints images by a template of --format.
func printImagesFormatted(w io.Writer, format string, all []image.Summary, now time.Time) error {
	rows := make([][]string, 0, len(all))
	for _, i := range all {
		name, tag := i.Short, "<none>"
		if at := strings.LastIndexByte(name, ':'); at > strings.LastIndexByte(name, '/') {
			name, tag = name[:at], name[at+1:]
		}
		rows = append(rows, []string{
			name, tag, output.ShortenDigest(i.ID), cmp.Or(i.Digest, "<none>"), formatCreated(i, now),
			i.Created.Local().Format(output.TimeFormat), formatImageSize(i), i.Platform,
		})
	}
	return output.PrintTableRows(w, format, imageColumns(), rows)
}

func formatCreated(i image.Summary, now time.Time) string {
	if i.Created.Unix() <= 0 {
		return "-" // reproducible builds set the time to 1970
	}
	return output.FormatAge(i.Created, now) + " ago"
}

func formatImageSize(i image.Summary) string {
	if i.Broken {
		return "incomplete"
	}
	return output.FormatSize(i.Size)
}
