// Package batches has the verbs that run many tasks: berth map, berth batch and berth batches.
package batches

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/cmd/berth/waiting"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/launcher/batch"
	"github.com/berth-gpu/berth/launcher/spec"
)

// MapCommand is berth map.
func MapCommand() *cli.Command {
	return &cli.Command{
		Name:      "map",
		Usage:     "run a command for each of many arguments, with a GPU for each",
		ArgsUsage: "IMAGE|-- COMMAND [ARG…] [::: VALUE…]",
		Description: "Runs COMMAND once for each VALUE, as many at once as there are devices. Each task has the devices\n" +
			"of its own that --gpus asks for; tasks that follow each other keep the lease, until another user\n" +
			"waits for devices. With IMAGE instead of --, each task is a container of berth run.\n\n" +
			"In COMMAND {} is the VALUE; without it the VALUE is appended. {1} is the first of several, {name} a\n" +
			"field of --each, {#} the task's number; {.} {/} {//} {/.} are VALUE without extension, its last\n" +
			"part, its directory, and its last part without extension. Several ::: make all combinations, :::+\n" +
			"pairs the values with those before it. No shell reads COMMAND: for pipes use -- sh -c '…'.\n\n" +
			"The output of each task is printed when it has ended. It stays in a file, as berth logs BATCH/7\n" +
			"shows it. ^C lets running tasks end, a second one kills them; berth batch --resume goes on.\n\n" + waiting.RequestHelp,
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "each-line", Aliases: []string{"a"}, Usage: "a task for each line of `FILE` (- is standard input)", TakesFile: true},
			&cli.StringFlag{Name: "each", Usage: "a task for each object of the JSON in `FILE`: an array, or a line for each", TakesFile: true},
			&cli.StringFlag{Name: "gpus", Usage: "the devices of each task: a `REQUEST`"},
			&cli.StringFlag{Name: "timeout", Usage: "end a task after `TIME`, such as 90s or 2h; a bare number is in seconds"},
			&cli.IntFlag{Name: "retries", Aliases: []string{"retry"}, Usage: "start a task that has failed again, `N` times at most, on other devices if there are any"},
			&cli.StringSliceFlag{Name: "env", Aliases: []string{"e"}, Usage: "set a `VARIABLE` of all tasks: NAME=VALUE, or NAME for the caller's value"},
			&cli.StringSliceFlag{Name: "volume", Aliases: []string{"v"}, Usage: "with IMAGE: mount `SOURCE:TARGET[:ro]`"},
			&cli.StringFlag{Name: "workdir", Aliases: []string{"w"}, Usage: "the working `DIRECTORY`, of the container with IMAGE"},
			&cli.BoolFlag{Name: "dry-run", Usage: "print the commands, and run none"},
		}, runFlags()...),
		OnUsageError: verb.WrongUsage,
		Action:       runMap,
	}
}

func runMap(c *cli.Context) error {
	b, err := newMap(c)
	if err != nil {
		return err
	}
	if c.Bool("dry-run") {
		for _, t := range b.Tasks {
			fmt.Println(quoteWords(t.Argv))
		}
		return nil
	}
	return startBatch(c, b)
}

// newMap makes the batch that the command line describes.
func newMap(c *cli.Context) (*batch.Batch, error) {
	words, sources, err := splitSources(c.Args().Slice())
	if err == nil {
		sources, err = appendFiles(c, sources)
	}
	if err != nil {
		return nil, verb.WrongCommandLine(c, err.Error())
	}
	if len(words) == 0 {
		return nil, verb.WrongCommandLine(c, "map takes a command and arguments: berth map --gpus 1 -- python train.py ::: a b c")
	}
	rows, err := batch.Combine(sources)
	if err != nil {
		return nil, verb.WrongCommandLine(c, err.Error()+": give them behind :::, or by --each-line FILE")
	}
	wanted, err := readRequest(c.String("gpus"))
	if err != nil {
		return nil, verb.WithCode(verb.ExitUsage, err)
	}
	env, err := verb.ReadEnv(c, os.LookupEnv)
	if err != nil {
		return nil, verb.WrongCommandLine(c, err.Error())
	}
	if _, err := exec.LookPath(words[0]); err == nil && isImage(c) && !strings.ContainsAny(words[0], "/:.@") {
		return nil, verb.WrongCommandLine(c, fmt.Sprintf("%s is a command of this server: -- stands before it; docker.io/library/%[1]s is an image of this name", words[0]))
	}
	if isImage(c) {
		words, env = containerWords(c, words, env), nil
	} else if c.IsSet("volume") {
		return nil, verb.WrongCommandLine(c, "--volume is for containers: a command behind -- sees the files of this server")
	} else if _, err := exec.LookPath(words[0]); err != nil && !strings.Contains(words[0], "{") {
		return nil, verb.WithCode(verb.ExitNotFound, fmt.Errorf("there is no command %q", words[0]))
	}
	var timeout time.Duration
	if timeout, err = spec.ParseTime(c.String("timeout")); err != nil {
		return nil, verb.WrongCommandLine(c, fmt.Sprintf("--timeout %q is %v", c.String("timeout"), err))
	}
	b, err := newBatch(c, "map")
	if err != nil {
		return nil, err
	}
	if dir := c.String("workdir"); dir != "" && !isImage(c) {
		b.Dir = b.TaskDir(batch.Task{Dir: dir})
	}
	filler := batch.NewFiller()
	for i, row := range rows {
		argv, err := filler.Fill(words, row, i+1)
		if err != nil {
			return nil, verb.WrongCommandLine(c, err.Error())
		}
		b.Tasks = append(b.Tasks, batch.Task{Request: wanted, Argv: argv, Env: env, Args: row.Values, Timeout: timeout, Retries: c.Int("retries")})
	}
	return b, nil
}

// readRequest checks a request, and returns it as it is shown; "" for none.
func readRequest(text string) (string, error) {
	if text == "" {
		return "", nil
	}
	r, err := request.Parse(text)
	if errors.Is(err, request.ErrNone) {
		return "", nil
	}
	return r.String(), err
}

// isImage reports whether the first word is an image, and not a command of the host behind --.
func isImage(c *cli.Context) bool {
	first := len(os.Args) - c.NArg()
	return first < 1 || os.Args[first-1] != "--"
}

// containerWords returns the command that runs words in a container. The lease is that of the worker that starts it.
func containerWords(c *cli.Context, words, env []string) []string {
	run := []string{batch.Self, "run", "--rm"}
	for _, e := range env {
		run = append(run, "--env", e)
	}
	for _, v := range c.StringSlice("volume") {
		run = append(run, "--volume", v)
	}
	if dir := c.String("workdir"); dir != "" {
		run = append(run, "--workdir", dir)
	}
	return append(append(run, "--"), words...)
}

// splitSources returns the command, and the arguments behind each ::: and :::+.
func splitSources(words []string) (command []string, sources []batch.Source, err error) {
	at := slices.IndexFunc(words, isSeparator)
	if at < 0 {
		return words, nil, nil
	}
	command, words = words[:at], words[at:]
	for len(words) > 0 {
		s := batch.Source{Linked: strings.HasSuffix(words[0], "+")}
		end := slices.IndexFunc(words[1:], isSeparator) + 1
		if end == 0 {
			end = len(words)
		}
		fromFiles := strings.HasPrefix(words[0], "::::")
		for _, value := range words[1:end] {
			if !fromFiles {
				s.Rows = append(s.Rows, batch.Row{Values: []string{value}})
				continue
			}
			lines, err := readLines(value)
			if err != nil {
				return nil, nil, err
			}
			s.Rows = append(s.Rows, lines...)
		}
		sources, words = append(sources, s), words[end:]
	}
	return command, sources, nil
}

func isSeparator(word string) bool {
	return slices.Contains([]string{":::", ":::+", "::::", "::::+"}, word)
}

// appendFiles appends the sources of --each-line and --each.
func appendFiles(c *cli.Context, sources []batch.Source) ([]batch.Source, error) {
	if path := c.String("each-line"); path != "" {
		rows, err := readLines(path)
		if err != nil {
			return nil, err
		}
		sources = append(sources, batch.Source{Rows: rows})
	}
	if path := c.String("each"); path != "" {
		rows, err := readObjects(path)
		if err != nil {
			return nil, err
		}
		sources = append(sources, batch.Source{Rows: rows})
	}
	return sources, nil
}

// maxLine bounds a line of a file with arguments, in bytes.
const maxLine = 1 << 20

// readLines returns a row for each line of a file. - is standard input.
func readLines(path string) (rows []batch.Row, err error) {
	f, err := openFile(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		rows = append(rows, batch.Row{Values: []string{lines.Text()}})
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return rows, nil
}

func readObjects(path string) (rows []batch.Row, err error) {
	f, err := openFile(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if rows, err = batch.ParseObjects(f); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return rows, nil
}

func openFile(path string) (*os.File, error) {
	if path == "-" {
		return os.Stdin, nil
	}
	return os.Open(path)
}

// newBatch returns a batch without tasks, as the flags say. kind is the beginning of its name if it isn't given.
func newBatch(c *cli.Context, kind string) (*batch.Batch, error) {
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	b := &batch.Batch{
		Name: c.String("name"), Dir: dir, Slots: c.Int("jobs"), MaxFails: c.Int("max-fails"), FailFast: c.Bool("fail-fast"),
		Backoff: time.Second, Created: now,
	}
	if b.Name == "" {
		b.Name = kind + now.Format("-0102-150405-") + fmt.Sprint(os.Getpid())
	}
	setFailFastLimit(b)
	return b, nil
}

// setFailFastLimit makes the first failure end a batch that is to fail fast without a number of failures.
func setFailFastLimit(b *batch.Batch) {
	if b.FailFast && b.MaxFails == 0 {
		b.MaxFails = 1
	}
}

// countSlots returns how many tasks can run at once: as many as the node has devices for, or CPUs.
func countSlots(ctx context.Context, c *cli.Context, tasks []batch.Task) (int, error) {
	slots := 0
	seen := map[string]bool{}
	for _, t := range tasks {
		if seen[t.Request] {
			continue
		}
		seen[t.Request] = true
		if t.Request == "" {
			slots = max(slots, runtime.NumCPU())
			continue
		}
		n, err := countFits(ctx, c, t.Request)
		if err != nil {
			return 0, err
		}
		slots = max(slots, n)
	}
	return slots, nil
}
