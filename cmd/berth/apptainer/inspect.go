package apptainer

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/internal/printable"
	"github.com/berth-gpu/berth/launcher/sif"
)

// part is one of the things that the verb inspect shows.
type part struct {
	flag, alias, usage string
	// key is its name in Apptainer's JSON.
	key  string
	show func(sif.Metadata) any
}

func listParts() []part {
	return []part{
		{"labels", "l", "show the labels, as without a flag", "labels", func(m sif.Metadata) any { return m.Labels }},
		{"deffile", "d", "show the definition file", "deffile", func(m sif.Metadata) any { return m.Definition }},
		{"runscript", "r", "show the runscript", "runscript", func(m sif.Metadata) any { return m.Runscript }},
		{"startscript", "", "show the start script", "startscript", func(m sif.Metadata) any { return m.Startscript }},
		{"test", "t", "show the test script", "test", func(m sif.Metadata) any { return m.Test }},
		{"environment", "e", "show the scripts that set the environment", "environment", func(m sif.Metadata) any { return m.Environment }},
		{"helpfile", "H", "show the help text", "helpfile", func(m sif.Metadata) any { return m.Help }},
	}
}

func inspectVerb() *cli.Command {
	list := []cli.Flag{
		&cli.BoolFlag{Name: "json", Aliases: []string{"j"}, Usage: "print JSON as Apptainer does"},
		&cli.BoolFlag{Name: "all", Usage: "show everything, as JSON"},
	}
	for _, p := range listParts() {
		f := &cli.BoolFlag{Name: p.flag, Usage: p.usage}
		if p.alias != "" {
			f.Aliases = []string{p.alias}
		}
		list = append(list, f)
	}
	return &cli.Command{
		Name: "inspect", Usage: "show what the author of a SIF file says about it", ArgsUsage: "IMAGE", Flags: list,
		OnUsageError: func(c *cli.Context, err error, isSub bool) error { return withCode(verb.WrongUsage(c, err, isSub)) },
		Action:       func(c *cli.Context) error { return withCode(inspectImage(c)) },
	}
}

func inspectImage(c *cli.Context) error {
	if c.NArg() != 1 {
		return verb.WrongCommandLine(c, "inspect takes an image: berth apptainer inspect image.sif")
	}
	img, err := openImage(c.Args().First())
	if err != nil {
		return err
	}
	defer img.closeFile()
	if img.reference != "" {
		return fmt.Errorf("%s: inspect reads SIF files; berth images --json and skopeo inspect describe other images", img.reference)
	}
	if img.isDir {
		return fmt.Errorf("%s is a directory: inspect reads SIF files", c.Args().First())
	}
	metadata, err := img.sif.ReadMetadata(img.file)
	if err != nil {
		return fmt.Errorf("%s: %w", c.Args().First(), err)
	}
	chosen := slices.DeleteFunc(listParts(), func(p part) bool { return !c.Bool(p.flag) && !c.Bool("all") })
	if len(chosen) == 0 {
		chosen = listParts()[:1]
	}
	if c.Bool("json") || c.Bool("all") {
		attributes := map[string]any{}
		for _, p := range chosen {
			attributes[p.key] = p.show(metadata)
		}
		return output.PrintJSON(os.Stdout, map[string]any{"data": map[string]any{"attributes": attributes}, "type": "container"})
	}
	for _, p := range chosen {
		if err := printPart(os.Stdout, p.show(metadata)); err != nil {
			return err
		}
	}
	return nil
}

// printPart prints texts of strangers.
func printPart(w io.Writer, value any) error {
	var b strings.Builder
	switch v := value.(type) {
	case string:
		b.WriteString(escapeText(v))
	case map[string]string:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if strings.HasPrefix(key, "/") { // a script
				b.WriteString("=== " + printable.Line(key) + " ===\n" + escapeText(v[key]))
			} else {
				b.WriteString(printable.Line(key) + ": " + printable.Line(v[key]) + "\n")
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// escapeText escapes all but line breaks and tabs.
func escapeText(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		for i, field := range strings.Split(strings.TrimSuffix(line, "\n"), "\t") {
			if i > 0 {
				b.WriteByte('\t')
			}
			b.WriteString(printable.Escape(field))
		}
		b.WriteByte('\n')
	}
	return b.String()
}
