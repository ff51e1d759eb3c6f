package backend

import (
	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/engine"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// TaskStore is where this machine's tasks are.
func TaskStore(conf berth.Config) tasks.Store {
	return tasks.Store{Data: conf.Data, State: conf.State, Proc: conf.Host.Proc}
}

// OpenTasks is where the tasks of this machine are. Their records hold environments
// and commands: they are root's.
func OpenTasks(c *cli.Context) (Tasks, berth.Config, error) {
	conf, err := verb.LoadConfig(c)
	if err != nil {
		return Tasks{}, conf, err
	}
	if err := verb.NeedRoot(); err != nil {
		return Tasks{}, conf, err
	}
	k := Tasks{ctx: c.Context}
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

// Retention is what the configuration keeps of tasks that have ended.
func Retention(conf berth.Config) control.Retention {
	age, count, err := conf.Run.Retention()
	if err != nil {
		return control.Retention{} // it was checked when it was read
	}
	return control.Retention{Age: age, Count: count}
}
