package backend

import (
	"io"
	"os"
	"path/filepath"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/launcher/batch"
)

// BatchStore is the store of this user's batches.
func BatchStore(conf berth.Config) batch.Store {
	return batch.Store{Dir: filepath.Join(conf.TaskData(), "batches")}
}

// PrintTaskOutput prints the output of all attempts of a batch's task.
func PrintTaskOutput(store batch.Store, name string, number int) {
	out, errs := store.Output(name, number)
	copyFile(os.Stdout, out)
	copyFile(os.Stderr, errs)
}

// copyFile prints a file. One that can't be read is left out: the task has printed nothing, or was never started.
func copyFile(to io.Writer, path string) {
	f, err := os.Open(path)
	if err != nil {
		return
	}
	defer f.Close()
	_, _ = io.Copy(to, f) // the reader of a pipe may have ended
}
