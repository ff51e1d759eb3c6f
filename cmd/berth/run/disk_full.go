package run

import (
	"context"
	"time"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/cmd/berth/verb"
)

// The time limit of the search for the largest task, and the size from which a task is named.
const (
	lookForLargest = 3 * time.Second
	muchWritten    = 1 << 20
)

// nameLargestTask adds the task that has written the most to an error of a full disk.
func nameLargestTask(conf berth.Config, err error) error {
	if !verb.IsDiskFull(err) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookForLargest)
	defer cancel()
	store := backend.TaskStore(conf)
	all, _ := store.List() // those that can be read
	full, most := verb.DiskFull{Err: err}, int64(muchWritten-1)
	for _, t := range all {
		size, _ := store.Size(ctx, t.ID) // the files that can be read
		if size.Written += size.Logs; size.Written > most {
			most = size.Written
			full.Largest = "task " + t.Name + " has written the most, " + output.FormatTaskSize(size)
		}
	}
	return full
}
