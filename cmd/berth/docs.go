package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"
)

// docsCommand writes what packaging ships from the command's own description:
// the man page and the completion for fish.
func docsCommand() *cli.Command {
	return &cli.Command{
		Name: "generate-docs", Hidden: true, ArgsUsage: "DIR",
		Action: func(c *cli.Context) error {
			if c.NArg() != 1 {
				return usageError{fmt.Errorf("berth generate-docs takes the directory to write to")}
			}
			pages, err := docs()
			if err != nil {
				return err
			}
			for name, text := range pages {
				path := filepath.Join(c.Args().First(), name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					return err
				}
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// docs renders the generated files by name. They don't depend on the build.
func docs() (map[string]string, error) {
	app := newApp()
	app.Version = ""
	man, err := app.ToManWithSection(1)
	if err != nil {
		return nil, fmt.Errorf("render the man page: %w", err)
	}
	fish, err := app.ToFishCompletion()
	if err != nil {
		return nil, fmt.Errorf("render the fish completion: %w", err)
	}
	// The library shows placeholders' marks, and takes --wait to need a value.
	fish = strings.NewReplacer("`", "", " -l wait -r ", " -l wait ").Replace(fish)
	return map[string]string{"man/berth.1": man, "completions/berth.fish": fish}, nil
}
