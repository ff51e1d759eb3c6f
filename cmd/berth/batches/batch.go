package batches

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/cmd/berth/waiting"
	"github.com/berth-gpu/berth/launcher/batch"
)

// BatchCommand is berth batch.
func BatchCommand() *cli.Command {
	return &cli.Command{
		Name:      "batch",
		Usage:     "run the tasks of a file, or go on with a batch",
		ArgsUsage: "FILE",
		Description: "FILE is YAML, - is standard input:\n\n" +
			"  defaults: {gpus: 1, timeout: 2h, retries: 1}\n" +
			"  tasks:\n" +
			"    prepare: {command: python prepare.py, gpus: \"0\"}\n" +
			"    train:\n" +
			"      image: pytorch/pytorch\n" +
			"      command: [python, train.py, --lr, \"{lr}\", --seed, \"{seed}\"]\n" +
			"      volumes: [\"/data:/data\"]\n" +
			"      matrix: {lr: [0.1, 0.01], seed: [1, 2, 3]}\n" +
			"      after: [prepare]\n" +
			"    report: {command: python report.py, gpus: \"0\", after: [train]}\n\n" +
			"A task starts when all tasks that it is after have succeeded. Each task of the file has image, command, gpus,\n" +
			"env, volumes, workdir, timeout, retries, after, and array (with {index}) or matrix for many of its\n" +
			"kind. A command in one text is read by sh.\n\n" +
			"--resume goes on with a batch that was interrupted or killed: tasks that have succeeded aren't repeated. With\n" +
			"--failed tasks that have failed are started again, too.\n\n" + waiting.RequestHelp,
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "resume", Usage: "go on with the batch `NAME`"},
			&cli.BoolFlag{Name: "failed", Usage: "with --resume: start failed tasks again, and those that waited for them"},
		}, runFlags()...),
		OnUsageError: verb.WrongUsage,
		Action: func(c *cli.Context) error {
			if c.IsSet("resume") {
				return resumeBatch(c)
			}
			if c.NArg() != 1 {
				return verb.WrongCommandLine(c, "batch takes a file, or --resume NAME; berth batch --help shows what is in the file")
			}
			return runFile(c)
		},
	}
}

// runFile runs the tasks of a file.
func runFile(c *cli.Context) error {
	path := c.Args().First()
	f, err := openFile(path)
	if err != nil {
		return err
	}
	defer f.Close()
	read, err := batch.ParseFile(f)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	b, err := newBatch(c, "batch")
	if err != nil {
		return err
	}
	b.Tasks, b.Slots, b.MaxFails = read.Tasks, cmp.Or(b.Slots, read.Slots), cmp.Or(b.MaxFails, read.MaxFails)
	b.FailFast = b.FailFast || read.FailFast
	setFailFastLimit(b)
	if read.Name != "" && !c.IsSet("name") {
		b.Name = read.Name
	}
	for i := range b.Tasks {
		if b.Tasks[i].Request, err = readRequest(b.Tasks[i].Request); err != nil {
			return fmt.Errorf("%s: task %s: gpus: %w", path, b.Label(i+1), err)
		}
	}
	return startBatch(c, b)
}

// resumeBatch runs what is left of a batch.
func resumeBatch(c *cli.Context) error {
	if c.NArg() > 0 {
		return verb.WrongCommandLine(c, "--resume takes the name of a batch, and no file beside it")
	}
	store, err := openStore(c)
	if err != nil {
		return err
	}
	name := c.String("resume")
	b, states, j, err := store.Resume(name, time.Now())
	if errors.Is(err, batch.ErrLocked) {
		return fmt.Errorf("batch %s is running: berth batches show %s shows how far it is", name, name)
	}
	if err != nil {
		return err
	}
	if c.Bool("failed") {
		if err := states.Reset(j.Append, time.Now()); err != nil {
			return errors.Join(err, j.Close())
		}
	}
	if jobs := c.Int("jobs"); jobs != 0 {
		b.Slots = jobs
	}
	if c.IsSet("max-fails") || c.IsSet("fail-fast") {
		b.MaxFails, b.FailFast = c.Int("max-fails"), c.Bool("fail-fast")
		setFailFastLimit(b)
	}
	if err := b.Check(); err != nil {
		return errors.Join(verb.WrongCommandLine(c, err.Error()), j.Close())
	}
	counts, advice := states.Count(), fmt.Sprintf("berth batch --resume %s --failed starts failed tasks again", name)
	switch {
	case counts.Succeeded == counts.Total:
		verb.PrintError(fmt.Sprintf("batch %s has ended: %s", name, counts.Summary()))
		return j.Close()
	case counts.Left() == 0:
		return errors.Join(fmt.Errorf("batch %s has ended: %s; %s", name, counts.Summary(), advice), j.Close())
	case b.MaxFails > 0 && counts.Failed >= b.MaxFails:
		return errors.Join(fmt.Errorf("%d tasks of batch %s have failed, and %d end it; %s, and --max-fails N allows more failures", counts.Failed, name, b.MaxFails, advice), j.Close())
	}
	return runBatch(c, store, b, states, j)
}
