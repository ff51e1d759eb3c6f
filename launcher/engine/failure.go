package engine

import (
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/launcher"
	"github.com/berth-gpu/berth/launcher/image"
	"github.com/berth-gpu/berth/launcher/image/registry"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// Failure is an error that went from one process to another: its text, and what it Is.
type Failure struct {
	Text  string   `json:"text"`
	Kinds []string `json:"kinds,omitempty"`
	// Code is the exit code of a run or exec that ended with it.
	Code int `json:"code,omitempty"`
}

func (f *Failure) Error() string { return f.Text }

// Is says whether the error was one that callers branch on.
func (f *Failure) Is(target error) bool {
	for _, kind := range f.Kinds {
		if kinds()[kind] == target {
			return true
		}
	}
	return false
}

// Failed prepares an error for another process.
func Failed(err error) Failure {
	f := Failure{Text: err.Error()}
	for name, kind := range kinds() {
		if errors.Is(err, kind) {
			f.Kinds = append(f.Kinds, name)
		}
	}
	return f
}

func kinds() map[string]error {
	return map[string]error{
		"busy": gpu.ErrBusy, "lost": gpu.ErrLost, "unknown": gpu.ErrUnknown, "too many": gpu.ErrTooMany,
		"no task": tasks.ErrNotFound, "ambiguous": tasks.ErrAmbiguous, "name taken": tasks.ErrNameTaken,
		"runs": launcher.ErrRuns, "not running": launcher.ErrNotRunning, "code unknown": launcher.ErrCodeUnknown,
		"no command": launcher.ErrNotFound, "can't invoke": launcher.ErrCantInvoke,
		"not here": image.ErrNotHere, "no image": image.ErrNoImage, "used": image.ErrUsed,
		"denied": registry.ErrDenied, "not found": registry.ErrNotFound, "plain": registry.ErrPlain,
		"certificate": registry.ErrCertificate, "unknown host": registry.ErrUnknownHost,
		"permission": fs.ErrPermission, "no space": unix.ENOSPC,
	}
}
