package backend

import (
	"context"
	"errors"
	"sync"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/broker/protocol"
	"github.com/berth-gpu/berth/cmd/berth/helper"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/engine"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// TaskStore returns the store of berth's own tasks.
func TaskStore(conf berth.Config) tasks.Store {
	s := tasks.Store{Data: conf.TaskData(), State: conf.TaskState(), Proc: conf.Host.Proc, Config: conf.Path(), Inspect: conf.InspectDevices}
	if verb.IsHelped() {
		var mu sync.Mutex // one question at a time
		s.SendDenied = func(pidfd int, sig syscall.Signal) error {
			mu.Lock()
			defer mu.Unlock()
			session, _, err := helper.Open(conf)
			if err != nil {
				return err
			}
			return errors.Join(session.SendSignal(pidfd, sig), session.Close())
		}
		s.PlaceMonitor = func(ctx context.Context, pid int, taskCgroup string) error {
			mu.Lock()
			defer mu.Unlock()
			return placeMonitor(ctx, conf, pid, taskCgroup)
		}
	}
	return s
}

// placeMonitor has the broker move a child of this process into the cgroup around a task's.
func placeMonitor(ctx context.Context, conf berth.Config, pid int, taskCgroup string) error {
	node, err := berth.Open(conf)
	if err != nil {
		return err
	}
	group, found := node.FindPlace(taskCgroup)
	if !found {
		return nil
	}
	session, _, err := helper.Open(conf)
	if err != nil {
		return err
	}
	_, err = session.Client().Place(ctx, protocol.Cgroup{Descendant: pid, Join: group})
	return errors.Join(err, session.Close())
}

// OpenTasks opens the tasks that the verb acts on. Only root can: the records hold
// environments and commands.
func OpenTasks(c *cli.Context) (Tasks, berth.Config, error) {
	conf, err := verb.LoadConfig(c)
	if err != nil {
		return Tasks{}, conf, err
	}
	if err := verb.NeedTaskRoot(); err != nil {
		return Tasks{}, conf, err
	}
	k := Tasks{ctx: c.Context, conf: conf}
	if k.Engine, err = ChooseEngine(c, conf); err != nil {
		return k, conf, err
	}
	k.Native = TaskStore(conf)
	k.Store = k.Native
	if k.Engine != nil {
		k.Store = engine.Store(k.Store, k.Engine.Request.Address)
		return k, conf, nil
	}
	adoptOrphans(c, k.Store)
	return k, conf, nil
}

// adoptOrphans starts a new monitor for each task whose monitor was killed, before a verb reads or
// changes the task. A failure is reported and doesn't stop the verb. Tasks that are removed by force need
// no monitor.
func adoptOrphans(c *cli.Context, store tasks.Store) {
	if c.Command.Name == "rm" && c.Bool("force") {
		return
	}
	if err := control.Adopt(c.Context, store, ""); err != nil {
		verb.PrintError(err.Error())
	}
}

// Retention returns how long, and how many, ended tasks the configuration keeps.
func Retention(conf berth.Config) control.Retention {
	age, count, err := conf.Run.Retention()
	if err != nil {
		return control.Retention{} // can't happen: LoadConfig has checked it
	}
	return control.Retention{Age: age, Count: count}
}
