package task

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/internal/printable"
	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// findTask opens the tasks of this machine and finds the one that the first argument names.
func findTask(c *cli.Context) (backend.Tasks, tasks.Task, error) {
	store, _, err := backend.OpenTasks(c)
	if err != nil {
		return store, tasks.Task{}, err
	}
	t, err := store.Find(c.Args().First())
	return store, t, err
}

// forEachTask calls begin once for each task that the command line names, and then the
// returned functions in the order of the arguments. It prints the result of wait, or the
// argument if that is "". An error of one task doesn't stop the others. With gone a missing
// task is no error, and a task with a broken record is removed.
func forEachTask(c *cli.Context, gone bool, begin func(backend.Tasks, tasks.Task) (wait func() (string, error))) error {
	if c.NArg() == 0 {
		list := "berth ps"
		if c.Command.Name == "rm" || c.Command.Name == "wait" {
			list = "berth ps -a"
		}
		return verb.WrongCommandLine(c, c.Command.Name+" takes tasks, by id or name; "+list+" shows them")
	}
	store, _, err := backend.OpenTasks(c)
	if err != nil {
		return err
	}
	waits := make([]func() (string, error), c.NArg())
	begun := map[string]func() (string, error){}
	for i, word := range c.Args().Slice() {
		t, err := store.Find(word)
		var broken *tasks.BrokenError
		if gone && errors.As(err, &broken) {
			waits[i] = func() (string, error) { return "", control.RemoveBroken(c.Context, store.Store, broken) }
			continue
		}
		if err != nil {
			waits[i] = func() (string, error) { return "", err }
			continue
		}
		if begun[t.ID] == nil {
			wait := sync.OnceValues(begin(store, t))
			go func() { _, _ = wait() }() // reportEach gets the same result
			begun[t.ID] = wait
		}
		waits[i] = begun[t.ID]
	}
	return reportEach(c, gone, waits)
}

// reportEach prints the result for each argument of a verb.
func reportEach(c *cli.Context, gone bool, waits []func() (string, error)) error {
	failed := false
	for i, word := range c.Args().Slice() {
		text, err := waits[i]()
		if c.Err() != nil {
			return context.Cause(c.Context)
		}
		if errors.Is(err, control.ErrCodeUnknown) { // text is the code that stands for it
			_, e := fmt.Fprintln(os.Stdout, text)
			err = errors.Join(err, e)
		}
		switch {
		case err == nil:
			_, err = fmt.Fprintln(os.Stdout, printable.Line(cmp.Or(text, word)))
		case gone && errors.Is(err, tasks.ErrNotFound):
			err = nil
		}
		if err != nil {
			verb.ReportError(err)
			failed = true
		}
	}
	if failed {
		return verb.WithCode(verb.ExitFailure, nil)
	}
	return nil
}

// warnOfBrokenTasks prints a line for each task whose record can't be read.
func warnOfBrokenTasks(k backend.Tasks, all []tasks.Task) {
	for _, t := range all {
		if t.State != tasks.Broken {
			continue
		}
		if _, err := k.Task(t.ID); err != nil {
			verb.ReportError(err)
		}
	}
}
