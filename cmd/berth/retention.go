package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/launcher/control"
)

// retentionOf is what the configuration keeps of tasks that have ended.
func retentionOf(conf berth.Config) control.Retention {
	age, count, err := conf.Run.Retention()
	if err != nil {
		return control.Retention{} // it was checked when it was read
	}
	return control.Retention{Age: age, Count: count}
}

// pruneTime is how long berth discover removes tasks. The next one goes on.
const pruneTime = 5 * time.Second

// pruneExpired removes what isn't to be kept of tasks that have ended.
func pruneExpired(ctx context.Context, conf berth.Config, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, pruneTime)
	defer cancel()
	if err := control.PruneEnded(ctx, taskStore(conf), retentionOf(conf), nil); err != nil {
		log.Warn("remove tasks that have ended", "error", err)
	}
}
