package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/urfave/cli/v2"
)

// understood is all that a verb's action can learn from the library.
type understood struct {
	Values map[string]string
	Words  []string
	Err    string
	Flags  int
}

func understand(t *testing.T, typed string, narrowed bool) (u understood) {
	t.Helper()
	app := newApp()
	app.Writer, app.ErrWriter = io.Discard, io.Discard
	for _, c := range slices.Concat(app.Commands, app.Command("apptainer").Subcommands) {
		full := slices.Clone(c.Flags)
		c.Action = func(ctx *cli.Context) error {
			u.Values, u.Words, u.Flags = map[string]string{}, ctx.Args().Slice(), len(ctx.Command.Flags)
			for _, f := range full {
				for _, name := range f.Names()[:1] { // a flag of the verb around it may have its second one
					u.Values[name] = fmt.Sprint(ctx.IsSet(name), " ", valueOf(ctx, f, name))
				}
			}
			return nil
		}
	}
	args := orderArguments(app, strings.Fields(typed))
	if narrowed {
		narrowApp(app, args)
	}
	if err := app.RunContext(context.Background(), args); err != nil {
		u.Err = err.Error()
	}
	return u
}

func valueOf(ctx *cli.Context, f cli.Flag, name string) any {
	switch f.(type) {
	case *cli.BoolFlag:
		return ctx.Bool(name)
	case *cli.IntFlag:
		return ctx.Int(name)
	case *cli.StringSliceFlag:
		return ctx.StringSlice(name)
	case *cli.GenericFlag:
		return ctx.Generic(name)
	}
	return ctx.String(name)
}

// TestNarrowApp: a verb gets the same flags and arguments from the narrowed app as from the whole one.
func TestNarrowApp(t *testing.T) {
	for _, tt := range []struct {
		name, typed string
		most        int // that many flags are left
	}{
		{"one flag", "berth run --gpus 1 image", 12},
		{"the image's command", "berth run image ls -la --gpus 3", 11},
		{"many flags", "berth run --gpus=1 -it -e A=b --env C=d -v /a:/b --rm --name x --no-wait image sh -c x", 20},
		{"a value like a flag", "berth run --memory-swap -1 image", 12},
		{"a value that is joined", "berth run -m=512m --pids-limit=3 image", 13},
		{"a flag with a value or none", "berth run --wait image ls --gpus 1", 12},
		{"a flag with a value of its own", "berth run --wait --gpus 1 image", 13},
		{"one dash", "berth run -gpus 1 image", 12},
		{"the end of flags", "berth run --init -- image --rw", 12},
		{"defaults", "berth run --network none --uts host image", 11},
		{"a verb's verb", "berth apptainer exec --nv -B /a image ls --gpus 1", 20},
		{"no such flag", "berth run --gups 1 image", 200},
		{"a joined short one", "berth run -eA=b image", 12},
		{"a value that is missing", "berth run --gpus", 200},
		{"a wrong value", "berth run --rm=maybe image", 200},
		{"nothing", "berth run", 11},
		{"flags of all", "berth --config /x run --gpus 1 image", 12},
		{"behind the words", "berth rm a -f b", 4},
		{"another verb", "berth ps -a -q", 4},
		{"help", "berth run --help", 200},
		{"no such verb", "berth rn image", 200},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, want := understand(t, tt.typed, true), understand(t, tt.typed, false)
			if got.Flags > tt.most {
				t.Errorf("%d flags are left, want %d at most of %d", got.Flags, tt.most, want.Flags)
			}
			got.Flags, want.Flags = 0, 0
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-as it was +narrowed):\n%s", tt.typed, diff)
			}
		})
	}
}
