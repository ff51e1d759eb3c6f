package engine

import (
	"errors"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/gpu/match"
	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/image"
	"github.com/berth-gpu/berth/launcher/image/registry"
	"github.com/berth-gpu/berth/launcher/rootfs"
	"github.com/berth-gpu/berth/launcher/tasks"
)

// Failure is an error in a form that can be sent to another process: the text, and the errors that it Is.
type Failure struct {
	Text  string   `json:"text"`
	Kinds []string `json:"kinds,omitempty"`
	// Code is the exit code of a run or exec that ended with it.
	Code int `json:"code,omitempty"`
	// Parts are the joined errors, if there are several.
	Parts []*Failure `json:"parts,omitempty"`
}

func (f *Failure) Error() string { return f.Text }

// Is reports whether the original error was target, one of the errors on which callers branch.
func (f *Failure) Is(target error) bool {
	for _, kind := range f.Kinds {
		if failureKinds()[kind] == target {
			return true
		}
	}
	return false
}

// Unwrap returns Parts.
func (f *Failure) Unwrap() (all []error) {
	for _, p := range f.Parts {
		all = append(all, p)
	}
	return all
}

// Parts returns the errors that were joined by errors.Join, or the error itself.
func Parts(err error) (all []error) {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var texts []string
	for _, e := range joined.Unwrap() {
		texts = append(texts, e.Error())
		all = append(all, Parts(e)...)
	}
	if len(all) == 0 || strings.Join(texts, "\n") != err.Error() { // a sentence with errors in it
		return []error{err}
	}
	return all
}

// NewFailure prepares an error for another process.
func NewFailure(err error) Failure {
	f := Failure{Text: err.Error()}
	if parts := Parts(err); len(parts) > 1 {
		for _, e := range parts {
			part := NewFailure(e)
			f.Parts = append(f.Parts, &part)
		}
	}
	for name, kind := range failureKinds() {
		if errors.Is(err, kind) {
			f.Kinds = append(f.Kinds, name)
		}
	}
	return f
}

// ErrWaited means that the devices were still busy after the wait that was asked for.
var ErrWaited = errors.New("waited for devices")

func failureKinds() map[string]error {
	return map[string]error{
		"busy": match.ErrBusy, "waited": ErrWaited, "lost": match.ErrLost, "unknown": match.ErrUnknown, "too many": match.ErrTooMany,
		"no task": tasks.ErrNotFound, "ambiguous": tasks.ErrAmbiguous, "name taken": tasks.ErrNameTaken,
		"runs": control.ErrRuns, "not running": control.ErrNotRunning, "code unknown": control.ErrCodeUnknown,
		"no command": rootfs.ErrNotFound, "can't invoke": rootfs.ErrCantInvoke,
		"not here": image.ErrNotHere, "no image": image.ErrNoImage, "used": image.ErrUsed, "several names": image.ErrNames, "platform": image.ErrPlatform,
		"denied": registry.ErrDenied, "not found": registry.ErrNotFound, "plain": registry.ErrPlain,
		"certificate": registry.ErrCertificate, "unknown host": registry.ErrUnknownHost, "unreachable": registry.ErrUnreachable,
		"permission": fs.ErrPermission, "no space": unix.ENOSPC,
	}
}
