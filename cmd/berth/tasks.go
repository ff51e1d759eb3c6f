package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/internal/printable"
	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/engine"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// taskStore is where this machine's tasks are.
func taskStore(conf berth.Config) tasks.Store {
	return tasks.Store{Data: conf.Data, State: conf.State, Proc: conf.Host.Proc}
}

// openTasks is where the tasks of this machine are. Their records hold environments
// and commands: they are root's.
func openTasks(c *cli.Context) (keeper, berth.Config, error) {
	conf, err := loadConfig(c)
	if err != nil {
		return keeper{}, conf, err
	}
	if err := needRoot(); err != nil {
		return keeper{}, conf, err
	}
	k := keeper{ctx: c.Context}
	if k.other, err = engineOf(c, conf); err != nil {
		return k, conf, err
	}
	k.native = taskStore(conf)
	k.Store = k.native
	if k.other != nil {
		k.Store = engine.Store(k.Store, k.other.request.Address)
		return k, conf, nil
	}
	adoptOrphans(c, k.Store)
	return k, conf, nil
}

// onTasks begins with all tasks that a command line names, and then says of one after
// another how it went: what the wait returns is printed, the word itself if that is "".
// What fails for one doesn't keep it from the others. A task that is named twice is
// begun with once. gone says that a task which isn't there is no fault, and that one which is broken is removed.
func onTasks(c *cli.Context, gone bool, begin func(keeper, tasks.Task) (wait func() (string, error))) error {
	if c.NArg() == 0 {
		return wrongCommandLine(c, c.Command.Name+" takes tasks, by id or name; berth ps shows them")
	}
	store, _, err := openTasks(c)
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
			go func() { _, _ = wait() }() // who waits gets both
			begun[t.ID] = wait
		}
		waits[i] = begun[t.ID]
	}
	return reportEach(c, gone, waits)
}

// reportEach says how it went with each word behind a verb.
func reportEach(c *cli.Context, gone bool, waits []func() (string, error)) error {
	failed := false
	for i, word := range c.Args().Slice() {
		text, err := waits[i]()
		if c.Err() != nil {
			return context.Cause(c.Context)
		}
		if errors.Is(err, control.ErrCodeUnknown) { // which stands for that
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
			_, line := exitStatus(err)
			printError(line)
			failed = true
		}
	}
	if failed {
		return exitError{exitFailure, nil}
	}
	return nil
}

// upFor says what a task is doing in the manner of docker ps, and since when.
func upFor(t tasks.Task, now time.Time) string {
	switch {
	case t.State == tasks.Running && t.Life != nil && !t.Life.Started.IsZero():
		return "up " + formatAge(t.Life.Started, now)
	case t.State == tasks.Exited && t.Exit != nil && !t.Exit.Finished.IsZero():
		text := t.String() + " " + formatAge(t.Exit.Finished, now) + " ago"
		switch {
		case t.Exit.Unknown:
			text += ", code unknown"
		case t.Exit.OOM:
			text += ", out of memory"
		case t.Exit.Error != "":
			text += ": " + listing{}.shorten(t.Exit.Error, 40)
		}
		return text
	case t.State == tasks.Restarting && t.Life != nil && t.Life.Ended != nil:
		return fmt.Sprintf("restarting (%d) %s ago", t.Life.Ended.Code, formatAge(t.Life.Ended.Finished, now))
	case t.State == tasks.Lost && t.Why != "":
		return "lost: " + t.Why
	}
	return t.String()
}

// warnBroken says in a line each which tasks can't be read.
func warnBroken(k keeper, all []tasks.Task) {
	for _, t := range all {
		if t.State != tasks.Broken {
			continue
		}
		if _, err := k.Task(t.ID); err != nil {
			_, line := exitStatus(err)
			printError(line)
		}
	}
}

// taskAdvice is what to do about an error of a task, "" if nothing is known.
func taskAdvice(err error) string {
	var broken *tasks.BrokenError
	switch {
	case errors.As(err, &broken) && broken.Hopeless():
		return "; berth rm -f " + broken.ID + " removes it"
	case errors.Is(err, tasks.ErrNotFound):
		return "; berth ps -a lists all"
	case errors.Is(err, control.ErrRuns):
		return "; berth stop ends it, or --force kills it"
	case errors.Is(err, control.ErrCodeUnknown):
		return ""
	}
	return ""
}
