package verb

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/launcher/spec"
)

// ReadEnv reads --env-file and --env, whose entries replace those of files. lookUp returns the values of
// variables that are given by name alone.
func ReadEnv(c *cli.Context, lookUp func(string) (string, bool)) (all []string, err error) {
	for _, path := range c.StringSlice("env-file") {
		entries, err := ReadEntries(c.Context, "env-file", path, lookUp)
		if err != nil {
			return nil, err
		}
		all = append(all, entries...)
	}
	for _, kv := range c.StringSlice("env") {
		if !strings.Contains(kv, "=") {
			value, ok := lookUp(kv)
			switch {
			case !ok && !IsVariableName(kv):
				return nil, fmt.Errorf("--env %s: a variable is NAME=VALUE, or NAME to pass it on; --cleanenv (Apptainer's -e) isn't needed, for a task has the image's environment alone", kv)
			case !ok:
				continue // a variable that isn't set here is left out, as docker does
			}
			kv += "=" + value
		}
		all = append(all, kv)
	}
	return all, nil
}

// IsVariableName reports whether a shell could set a variable of this name.
func IsVariableName(name string) bool {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_"
	return name != "" && strings.Trim(name, letters+"0123456789") == "" && strings.Contains(letters, name[:1])
}

// ReadEntries reads the file of NAME=VALUE lines that a flag names. lookup returns the values of names alone; with
// nil a name alone is kept.
func ReadEntries(ctx context.Context, flag, path string, lookup func(string) (string, bool)) ([]string, error) {
	f, err := OpenInput(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", flag, err)
	}
	entries, err := spec.ParseEnvFile(f, lookup)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("--%s %s: %w", flag, path, err)
	}
	return entries, nil
}
