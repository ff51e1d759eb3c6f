package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/hook/setup"
)

func setupCommand() *cli.Command {
	var engines []*cli.Command
	for _, name := range setup.Engines() {
		engines = append(engines, setupEngineCommand(name))
	}
	return &cli.Command{
		Name:  "setup",
		Usage: "have docker, containerd or podman give GPUs by berth",
		Description: "Edits the engine's own configuration: what is there stays as it is written, each change is shown,\n" +
			"and --remove takes it back. No engine is restarted: the command that makes it take effect is printed.",
		HideHelpCommand: true,
		OnUsageError:    wrongUsage,
		Action: func(c *cli.Context) error {
			if c.NArg() > 0 {
				name := c.Args().First()
				return wrong(c, fmt.Sprintf("there is no engine %q%s: docker, containerd and podman are known", name, didYouMean(name, setup.Engines())))
			}
			return cli.ShowSubcommandHelp(c)
		},
		Subcommands: engines,
	}
}

func setupEngineCommand(engine string) *cli.Command {
	return &cli.Command{
		Name:  engine,
		Usage: "add the runtime berth to " + engine + "'s configuration",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "default", Usage: "make berth the default runtime, so that nobody has to name it"},
			&cli.BoolFlag{Name: "dry-run", Usage: "show what would change, and change nothing"},
			&cli.BoolFlag{Name: "remove", Usage: "take back what berth setup has changed"},
		},
		OnUsageError: wrongUsage,
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			if c.Bool("default") && c.Bool("remove") {
				return wrong(c, "--default and --remove exclude each other")
			}
			if !c.Bool("dry-run") {
				if err := needRoot(); err != nil {
					return err
				}
			}
			conf, err := config(c)
			if err != nil {
				return err
			}
			job := setupJob{engine: engine, conf: conf, host: thisHost(c.Context, engine), remove: c.Bool("remove"), dry: c.Bool("dry-run"), out: paperFor(os.Stdout)}
			return job.run(c.Context, setup.Options{Default: c.Bool("default"), Config: otherConfig(c)})
		},
	}
}

// otherConfig is the configuration that the engine's runtime has to be told of, "" for
// the usual one.
func otherConfig(c *cli.Context) string {
	path, err := filepath.Abs(c.String("config"))
	if err != nil || path == berth.ConfigPath {
		return ""
	}
	return path
}

// setupJob is one call of berth setup.
type setupJob struct {
	engine      string
	conf        berth.Config
	host        setup.Host
	remove, dry bool
	out         paper
}

func (j setupJob) run(ctx context.Context, o setup.Options) error {
	if !j.dry {
		held, err := lockSetup(ctx, j.conf.Data)
		if err != nil {
			return err
		}
		defer held.Close() // nothing was written
	}
	plan, err := j.plan(ctx, o)
	if err != nil {
		return err
	}
	if len(plan.Changes) == 0 {
		j.out.notes(append(plan.Notes, j.menu(ctx)...))
		fmt.Fprintf(j.out, "%s: nothing to change\n", j.engine)
		return j.forget()
	}
	if err := check(ctx, plan); err != nil {
		return err
	}
	for _, c := range plan.Changes {
		j.out.change(c)
	}
	if !j.dry {
		if err := apply(j.host, plan, setup.RecordPath(j.conf.Data, j.engine)); err != nil {
			return err
		}
		if err := j.forget(); err != nil {
			return err
		}
	}
	plan.Notes = append(plan.Notes, j.menu(ctx)...)
	j.sayNext(plan)
	return nil
}

// sayNext is what there is to do and to know besides.
func (j setupJob) sayNext(plan setup.Plan) {
	j.out.notes(plan.Notes)
	does := "takes"
	if j.dry {
		does = "would take"
	}
	if plan.Apply != "" {
		fmt.Fprintf(j.out, "%s %s it up with:\n  %s\n", j.engine, does, plan.Apply)
	}
	if j.dry {
		fmt.Fprintln(j.out, "nothing was changed, as --dry-run says")
	}
}

func (j setupJob) plan(ctx context.Context, o setup.Options) (setup.Plan, error) {
	record, err := setup.LoadRecord(j.host.FS, j.conf.Data, j.engine)
	if err != nil {
		return setup.Plan{}, err
	}
	if j.remove {
		if record == nil {
			return setup.Plan{Notes: []string{"berth setup " + j.engine + " has left no record in " + j.conf.Data}}, nil
		}
		plan, err := setup.Remove(j.host, record)
		if err == nil && !j.dry {
			plan.Notes = append(plan.Notes, containersLeft(ctx, j.engine)...)
		}
		return plan, err
	}
	o.Data = j.conf.Data
	o.Hook = j.conf.HookCommand()
	o.Runtime = filepath.Join(filepath.Dir(o.Hook), "berth-runtime")
	for _, program := range []string{o.Runtime, o.Hook} {
		if fi, err := os.Stat(program); err != nil || !fi.Mode().IsRegular() {
			return setup.Plan{}, fmt.Errorf("there is no %s: install it beside berth", program)
		}
	}
	o.Crun, o.CountIndices = j.crun(), j.conf.Policy.NVIDIAIndices == "count"
	return setup.For(j.engine, j.host, o, record)
}

// crun says that crun is what the runtime becomes.
func (j setupJob) crun() bool {
	if j.conf.Runtime != "" {
		return filepath.Base(j.conf.Runtime) == "crun"
	}
	return j.host.Find("crun") != ""
}

// forget removes the record of what has been taken back.
func (j setupJob) forget() error {
	if !j.remove || j.dry {
		return nil
	}
	record, err := setup.LoadRecord(j.host.FS, j.conf.Data, j.engine)
	if record == nil || err != nil {
		return err
	}
	if err := os.Remove(setup.RecordPath(j.conf.Data, j.engine)); err != nil {
		return fmt.Errorf("remove record: %w", err)
	}
	for _, f := range record.Files { // what a setup that was killed has begun to write
		_ = os.Remove(temp(f.Path)) // there is none as a rule
	}
	removeDirs(record.Dirs)
	return nil
}

// answerTime is how long an engine may take to answer.
const answerTime = 10 * time.Second

// call is what a program prints, or what it says if it fails.
func call(ctx context.Context, words ...string) (out, wrong string) {
	ctx, stop := context.WithTimeout(ctx, answerTime)
	defer stop()
	var said, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Stdout, cmd.Stderr = &said, &errs
	if err := cmd.Run(); err != nil {
		return "", cmp.Or(oneLine(errs.String()), oneLine(said.String()), err.Error())
	}
	return said.String(), ""
}

// answer is what a program prints, "" if it fails.
func answer(ctx context.Context, words ...string) string {
	out, _ := call(ctx, words...)
	return strings.TrimSpace(out)
}

// thisHost is the machine that this process runs on.
func thisHost(ctx context.Context, engine string) setup.Host {
	h := setup.Host{FS: os.DirFS("/"), Find: func(name string) string {
		path, err := exec.LookPath(name)
		if err != nil {
			return ""
		}
		return path
	}}
	program := map[string]string{"docker": "dockerd"}[engine]
	if program = h.Find(cmp.Or(program, engine)); program != "" {
		h.Version = setup.FindVersion(answer(ctx, program, "--version"))
	}
	if words := h.ContainerdDumpCommand(); engine == "containerd" && words != nil {
		h.Dump, h.Refusal = call(ctx, words...)
	}
	for line := range strings.Lines(answer(ctx, "systemctl", "show-environment")) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "PATH="); ok {
			h.Path = value
		}
	}
	return h
}

// check has the engine look at what shall be written, before it is.
func check(ctx context.Context, plan setup.Plan) error {
	c := plan.Check
	if c == nil {
		return nil
	}
	name := filepath.Base(c.Command[0])
	out, wrong, err := inDir(ctx, c.Command, c.After)
	switch {
	case err != nil:
		return err
	case wrong == "" && c.Judge != nil:
		if err := c.Judge(out); err != nil {
			return fmt.Errorf("nothing was changed: %w", err)
		}
		return nil
	case wrong == "":
		return nil
	}
	if _, old, err := inDir(ctx, c.Command, c.Before); err == nil && old != "" && c.Before != nil {
		return fmt.Errorf("%s refuses its configuration as it is, so nothing was changed: %s", name, old)
	}
	return fmt.Errorf("%s refuses what would be written, so nothing was changed: %s", name, wrong)
}

// inDir calls a program on files in a directory of their own: what it prints, or what it
// says against them.
func inDir(ctx context.Context, command []string, files map[string][]byte) (out, wrong string, err error) {
	dir, err := os.MkdirTemp("", "berth-setup-")
	if err != nil {
		return "", "", fmt.Errorf("make directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	for name, text := range files {
		path := filepath.Join(dir, name)
		text = []byte(strings.ReplaceAll(string(text), setup.Dir, dir))
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, text, 0o600)); err != nil {
			return "", "", err
		}
	}
	var words []string
	for _, w := range command {
		words = append(words, strings.ReplaceAll(w, setup.Dir, dir))
	}
	out, wrong = call(ctx, words...)
	return out, strings.ReplaceAll(wrong, dir+"/", ""), nil
}

// containersLeft names the containers that need the runtime that goes.
func containersLeft(ctx context.Context, engine string) []string {
	format := map[string]string{"docker": "{{.HostConfig.Runtime}} {{.Name}}", "podman": "{{.OCIRuntime}} {{.Name}}"}[engine]
	if format == "" {
		return []string{"pods of a runtime class with the handler berth can't be started without it"}
	}
	ids := strings.Fields(answer(ctx, engine, "ps", "--all", "--quiet"))
	if len(ids) == 0 {
		return nil
	}
	var names []string
	for line := range strings.Lines(answer(ctx, append([]string{engine, "inspect", "--format", format}, ids...)...)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), setup.Name+" "); ok {
			names = append(names, strings.TrimPrefix(name, "/"))
		}
	}
	if len(names) == 0 {
		return nil
	}
	return []string{"these containers have the runtime berth, and can't be started again without it: " + strings.Join(names, ", ")}
}
