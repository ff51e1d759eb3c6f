package doctor

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/engines"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/cmd/berth/rootless"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/internal/printable"
	"github.com/berth-gpu/berth/internal/userns"
)

// Command is berth doctor.
func Command() *cli.Command {
	return &cli.Command{
		Name:  "doctor",
		Usage: "check whether everything is in place, and say how to fix what isn't",
		Description: "Checks the driver, device nodes, runtimes, cgroups, berth's programs, files and tasks, CDI specs,\n" +
			"and each engine that is installed. Changes nothing, and needs no root, but sees less without.\n" +
			"The exit code is 1 if something fails; warnings alone are no failure.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
			&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "print only what is not ok"},
		},
		OnUsageError: verb.WrongUsage,
		Action: func(c *cli.Context) error {
			if err := verb.CheckNoArguments(c); err != nil {
				return err
			}
			findings := runDoctor(c)
			if c.Bool("json") {
				if err := output.PrintJSON(os.Stdout, findings); err != nil {
					return err
				}
			} else {
				printFindings(output.NewStyledWriter(os.Stdout), findings, c.Bool("quiet"))
			}
			for _, f := range findings {
				if f.State == Failure {
					return verb.WithCode(verb.ExitFailure, nil)
				}
			}
			return nil
		},
	}
}

// runDoctor makes all checks. A configuration that can't be read is the only finding.
func runDoctor(c *cli.Context) []Finding {
	conf, err := verb.LoadConfig(c)
	if err != nil {
		return []Finding{{
			ID: "configuration", State: Failure, About: "configuration", Text: err.Error(),
			Fix: "edit it: every key is explained in the one that is packaged",
		}}
	}
	return Examine(c.Context, doctorHost(c, conf))
}

// inNamespace is the user of a process that is root of a user namespace.
const inNamespace = "uid 0 of a user namespace"

// doctorHost returns the machine as this process sees it.
func doctorHost(c *cli.Context, conf berth.Config) Host {
	h := Host{Config: conf, ConfigPath: c.String("config"), Berth: conf.Command(), Find: engines.Find, Run: engines.Run}
	h.TryNamespace = func(ctx context.Context) (userns.Refusal, error) {
		return rootless.Try(ctx, conf.GPUHost().ProcPath())
	}
	h.Engines = func(ctx context.Context, name string) Engine {
		host := engines.ReadHost(ctx, name)
		return ReadEngine(host, name, engines.SetupOptions(conf, host, c.String("config")), engines.QueryDaemon(ctx, name))
	}
	if self, err := os.Executable(); err == nil {
		h.Berth = self
	}
	switch {
	case os.Geteuid() != 0:
		h.User = fmt.Sprintf("user %d", os.Geteuid())
	case verb.NeedHost() != nil:
		h.User = inNamespace
	}
	return h
}

// printFindings prints a line for each finding, and the number of findings of each state.
// quiet leaves out findings that are ok, and the last line.
func printFindings(w output.StyledWriter, all []Finding, quiet bool) {
	colours := map[State]string{OK: output.Green, Warning: output.Yellow, Failure: output.Red}
	count := map[State]int{}
	for _, f := range all {
		count[f.State]++
		if quiet && f.State == OK {
			continue
		}
		text := printable.Line(f.Text)
		if f.Fix != "" {
			text += "; fix: " + printable.Line(f.Fix)
		}
		head := fmt.Sprintf("%-7s  %-13s  ", f.State, f.About)
		lines := output.WrapWords(text, w.Width-len(head))
		fmt.Fprintln(w, strings.Replace(head, string(f.State), w.Style(colours[f.State], string(f.State)), 1)+lines[0])
		for _, line := range lines[1:] {
			fmt.Fprintln(w, strings.Repeat(" ", len(head))+line)
		}
	}
	if !quiet {
		fmt.Fprintf(w, "\n%d ok, %s, %s\n", count[OK], output.FormatCount(count[Warning], "warning"), output.FormatCount(count[Failure], "failure"))
	}
}
