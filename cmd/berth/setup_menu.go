package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/berth-gpu/berth"
)

// menu has engines know berth's CDI devices, unless an admin has seen to it: they are
// there from the first engine that is set up until the last one's setup is taken back.
// It returns what is to be said of that. An engine works without them, but for --device.
func (j setupJob) menu(ctx context.Context) []string {
	m, err := berth.LoadMenu(j.conf)
	switch {
	case err != nil:
		return []string{err.Error()}
	case j.remove && (j.dry || !m.Setup || j.others()):
		return nil
	case j.remove:
		if err := berth.RemoveMenu(ctx, j.conf); err != nil {
			return []string{fmt.Sprintf("berth's CDI devices stay: %v", err)}
		}
		_ = os.Remove(m.Dir) // it isn't empty where somebody else uses it
		return []string{"berth's CDI devices are gone from " + m.Dir}
	case len(m.Kinds) > 0 || len(j.conf.Host.CDI) == 0:
		return nil
	}
	m = usualMenu(j.conf)
	m.Setup = true
	if j.dry {
		return []string{"berth's CDI devices, for --device berth/gpus=2, would come to " + m.Dir}
	}
	if err := j.writeMenu(ctx, m); err != nil {
		return []string{fmt.Sprintf("there are no CDI devices yet, for --device berth/gpus=2, and berth cdi generate makes them: %v", err)}
	}
	return []string{"berth's CDI devices, for --device berth/gpus=2, are in " + m.Dir}
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

// others says that other engines are set up.
func (j setupJob) others() bool {
	records, err := filepath.Glob(filepath.Join(j.conf.Data, "setup", "*.json"))
	own := filepath.Join(j.conf.Data, "setup", j.engine+".json")
	return err != nil || len(records) > 1 || len(records) == 1 && records[0] != own
}
