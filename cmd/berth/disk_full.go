package main

import (
	"context"
	"errors"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth"
)

// diskFull is an error of a full disk, with the task that has written the most.
type diskFull struct {
	error
	largest string // "" if no task has written much
}

func (e diskFull) Unwrap() error { return e.error }

// advice is the way out, as the end of a sentence.
func (e diskFull) advice() string {
	if e.largest == "" {
		return "; berth prune --all frees what no task uses"
	}
	return "; berth prune --all frees what no task uses, and " + e.largest + ": see berth system df -v"
}

// isDiskFull also knows errors that other processes have told as text.
func isDiskFull(err error) bool {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return true
	}
	return err != nil && (strings.Contains(err.Error(), unix.ENOSPC.Error()) || strings.Contains(err.Error(), unix.EDQUOT.Error()))
}

// How long the largest task is looked for, and the least that is worth a word.
const (
	lookForLargest = 3 * time.Second
	muchWritten    = 1 << 20
)

// nameLargestTask adds to an error of a full disk which task has written the most.
func nameLargestTask(conf berth.Config, err error) error {
	if !isDiskFull(err) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookForLargest)
	defer cancel()
	store := taskStore(conf)
	all, _ := store.List() // those that can be read
	sizes, _ := sizesOf(ctx, store, all, nil)
	full := diskFull{error: err}
	if len(sizes) > 0 && sizes[0].Written+sizes[0].Logs >= muchWritten {
		t := sizes[0]
		t.Written += t.Logs
		full.largest = "task " + t.Name + " has written the most, " + formatTaskSize(t.Size)
	}
	return full
}
