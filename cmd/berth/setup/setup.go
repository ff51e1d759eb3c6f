// Package setup has the verbs that change the host for engines: setup adds berth to the configuration of docker,
// containerd or podman, and cdi writes the CDI specs of berth's devices and shows those of others.
package setup

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/engines"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/hook/setup"
	"github.com/berth-gpu/berth/internal/spell"
)

// Command is berth setup.
func Command() *cli.Command {
	var subcommands []*cli.Command
	for _, name := range setup.Engines() {
		subcommands = append(subcommands, setupEngineCommand(name))
	}
	return &cli.Command{
		Name:  "setup",
		Usage: "add berth to the configuration of docker, containerd or podman",
		Description: "The rest of the engine's configuration stays byte for byte. Each change is shown, and --remove undoes it.\n" +
			"No engine is restarted: the command that applies the change is printed.",
		HideHelpCommand: true,
		OnUsageError:    verb.WrongUsage,
		Action: func(c *cli.Context) error {
			if c.NArg() > 0 {
				name := c.Args().First()
				return verb.WrongCommandLine(c, fmt.Sprintf("there is no engine %q%s: docker, containerd and podman are known", name, spell.Suggestion(name, setup.Engines()...)))
			}
			return cli.ShowSubcommandHelp(c)
		},
		Subcommands: subcommands,
	}
}

func setupEngineCommand(engine string) *cli.Command {
	return &cli.Command{
		Name:  engine,
		Usage: "add the runtime berth to " + engine + "'s configuration",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "default", Usage: "make berth the default runtime of all containers"},
			&cli.BoolFlag{Name: "dry-run", Usage: "show what would change, and change nothing"},
			&cli.BoolFlag{Name: "remove", Usage: "undo the changes of berth setup"},
		},
		OnUsageError: verb.WrongUsage,
		Action: func(c *cli.Context) error {
			if err := verb.CheckNoArguments(c); err != nil {
				return err
			}
			if c.Bool("default") && c.Bool("remove") {
				return verb.WrongCommandLine(c, "--default and --remove exclude each other")
			}
			if !c.Bool("dry-run") {
				if err := verb.NeedRoot(); err != nil {
					return err
				}
			}
			conf, err := verb.LoadConfig(c)
			if err != nil {
				return err
			}
			host := engines.ReadHost(c.Context, engine)
			job := setupJob{engine: engine, conf: conf, host: host, remove: c.Bool("remove"), dry: c.Bool("dry-run"), out: output.NewStyledWriter(os.Stdout)}
			job.options = engines.SetupOptions(conf, host, c.String("config"))
			job.options.Default = c.Bool("default")
			return job.run(c.Context)
		},
	}
}

// setupJob is one call of berth setup.
type setupJob struct {
	engine      string
	conf        berth.Config
	host        setup.Host
	options     setup.Options
	remove, dry bool
	out         output.StyledWriter
}

func (j setupJob) run(ctx context.Context) error {
	if !j.dry {
		held, err := engines.Lock(ctx, j.conf.Data)
		if err != nil {
			return err
		}
		defer held.Close()
	}
	plan, err := j.plan(ctx)
	if err != nil {
		return err
	}
	if len(plan.Changes) == 0 {
		j.printNotes(append(plan.Notes, j.updateMenu(ctx)...))
		fmt.Fprintf(j.out, "%s: nothing to change\n", j.engine)
		return j.removeRecord()
	}
	if err := engines.Validate(ctx, plan); err != nil {
		return err
	}
	for _, c := range plan.Changes {
		printChange(j.out, c)
	}
	if !j.dry {
		if err := engines.Apply(j.host, plan, setup.RecordPath(j.conf.Data, j.engine)); err != nil {
			return err
		}
		if err := j.removeRecord(); err != nil {
			return err
		}
	}
	j.printNotes(append(plan.Notes, j.updateMenu(ctx)...))
	does := "takes"
	if j.dry {
		does = "would take"
	}
	if plan.Apply != "" {
		fmt.Fprintf(j.out, "%s %s it up with:\n  %s\n", j.engine, does, plan.Apply)
	}
	if j.dry {
		fmt.Fprintln(j.out, "nothing was changed because of --dry-run")
	}
	return nil
}

func (j setupJob) printNotes(notes []setup.Note) {
	for _, n := range notes {
		fmt.Fprintln(j.out, "note: "+n.String())
	}
}

func (j setupJob) plan(ctx context.Context) (setup.Plan, error) {
	record, err := setup.LoadRecord(j.host.FS, j.conf.Data, j.engine)
	if err != nil {
		return setup.Plan{}, err
	}
	var lost []setup.Note
	if record == nil {
		if record, err = setup.RebuildRecord(j.host, j.engine, j.conf.Data); err != nil {
			return setup.Plan{}, err
		}
		lost = []setup.Note{{Text: "berth setup " + j.engine + " has left no record in " + j.conf.Data}}
	}
	if j.remove {
		if record == nil {
			return setup.Plan{Notes: lost}, nil
		}
		if lost != nil {
			lost[0].Text += ": values that name berth are removed, and the values that they have replaced are unknown"
		}
		plan, err := setup.PlanRemoval(j.host, record)
		plan.Notes = append(lost, plan.Notes...)
		if err == nil && !j.dry {
			plan.Notes = append(plan.Notes, j.noteDependentContainers(ctx)...)
		}
		return plan, err
	}
	for _, program := range []string{j.options.Runtime, j.options.Hook} {
		if fi, err := os.Stat(program); err != nil || !fi.Mode().IsRegular() {
			return setup.Plan{}, fmt.Errorf("there is no %s: install it beside berth", program)
		}
	}
	return setup.PlanSetup(j.engine, j.host, j.options, record)
}

// noteDependentContainers returns notes about containers that need the removed runtime.
func (j setupJob) noteDependentContainers(ctx context.Context) []setup.Note {
	if j.engine == "containerd" {
		return []setup.Note{{Text: "pods of a runtime class with the handler berth can't be started any more"}}
	}
	names := engines.ContainersOfBerth(ctx, j.engine)
	if len(names) == 0 {
		return nil
	}
	return []setup.Note{{Text: "these containers have the runtime berth, and can't be started again without it: " + strings.Join(names, ", ")}}
}

// removeRecord removes the record of an engine whose changes are undone.
func (j setupJob) removeRecord() error {
	if !j.remove || j.dry {
		return nil
	}
	return engines.Forget(j.host, j.conf.Data, j.engine)
}

// updateMenu writes berth's CDI specs with the first engine that is set up, and removes them
// with the last one, unless the admin has written them by berth cdi generate. Without the
// specs only --device doesn't work, so errors become notes.
func (j setupJob) updateMenu(ctx context.Context) []setup.Note {
	note := func(format string, values ...any) []setup.Note {
		return []setup.Note{{Text: fmt.Sprintf(format, values...)}}
	}
	m, err := berth.LoadMenu(j.conf)
	switch {
	case err != nil:
		return note("%v", err)
	case j.remove && (j.dry || !m.Setup || j.hasOtherEngines()):
		return nil
	case j.remove:
		if err := berth.RemoveMenu(ctx, j.conf); err != nil {
			return note("berth's CDI devices stay: %v", err)
		}
		_ = os.Remove(m.Dir) // it fails if other specs are in it
		return note("berth's CDI devices are removed from %s", m.Dir)
	case len(m.Kinds) > 0 || len(j.conf.Host.CDI) == 0:
		return nil
	}
	m = defaultMenu(j.conf)
	m.Setup = true
	if j.dry {
		return note("berth's CDI devices, for --device berth/gpus=2, would be written to %s", m.Dir)
	}
	if err := j.writeMenu(ctx, m); err != nil {
		return note("there are no CDI devices yet, for --device berth/gpus=2; berth cdi generate writes them: %v", err)
	}
	return note("berth's CDI devices, for --device berth/gpus=2, are in %s", m.Dir)
}

func (j setupJob) writeMenu(ctx context.Context, m berth.Menu) error {
	node, err := berth.Open(j.conf)
	if err != nil {
		return err
	}
	inv, err := node.Inventory(ctx)
	if err != nil {
		return err
	}
	_, err = berth.WriteMenu(ctx, j.conf, inv, m)
	return err
}

// hasOtherEngines reports whether other engines than this one are set up.
func (j setupJob) hasOtherEngines() bool {
	records, err := filepath.Glob(filepath.Join(j.conf.Data, "setup", "*.json"))
	own := setup.RecordPath(j.conf.Data, j.engine)
	return err != nil || len(records) > 1 || len(records) == 1 && records[0] != own
}
