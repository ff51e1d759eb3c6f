// Package batch runs many tasks on this node: as many at once as there are workers, each of which holds a lease and runs one
// task after the other. It has the tasks of a batch, the journal that says how far a batch has come, and the order in which tasks start. What a
// worker is, the caller decides: the command line starts processes below leases.
package batch

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Task is one task of a batch. Tasks are numbered from 1 in the order of the batch.
type Task struct {
	// Name is unique in the batch. It is shown, and names the task in After.
	Name string `json:"name,omitempty"`
	// Request is what the task needs, in the language of package gpu/request; empty for no devices. Tasks with equal requests share leases.
	Request string `json:"request,omitempty"`
	// Argv is the command and its arguments.
	Argv []string `json:"argv"`
	// Env are variables (NAME=VALUE) in addition to those of the process that runs the batch.
	Env []string `json:"env,omitempty"`
	// Dir is the working directory, "" for that of the batch. A relative one begins there.
	Dir string `json:"dir,omitempty"`
	// Args are the arguments that the task differs in from others, for tables of results.
	Args []string `json:"args,omitempty"`
	// Timeout ends the task, 0 never.
	Timeout time.Duration `json:"timeout,omitempty"`
	// Retries is how often the task is started again after it has failed.
	Retries int `json:"retries,omitempty"`
	// After are the numbers of the tasks that have to succeed before this one starts.
	After []int `json:"after,omitempty"`
}

// Batch is all that is needed to run a batch again from its journal.
type Batch struct {
	Name string `json:"name"`
	// Dir is the working directory of tasks that have none of their own.
	Dir string `json:"dir"`
	// Slots is the greatest number of tasks that run at once.
	Slots int `json:"slots"`
	// MaxFails is how many failed tasks end the batch: no more are started then. 0 means no limit.
	MaxFails int `json:"max_fails,omitempty"`
	// FailFast ends running tasks, too, when MaxFails is reached.
	FailFast bool `json:"fail_fast,omitempty"`
	// Backoff is the wait before the first retry of a task; each further one waits twice as long.
	Backoff time.Duration `json:"backoff,omitempty"`
	Created time.Time     `json:"created"`
	Tasks   []Task        `json:"tasks,omitempty"`
}

// TaskDir returns the working directory of a task.
func (b *Batch) TaskDir(t Task) string {
	if filepath.IsAbs(t.Dir) {
		return t.Dir
	}
	return filepath.Join(b.Dir, t.Dir)
}

// Check returns an error if the batch can't be run as it is: numbers below 0, tasks without a command, names that occur twice, and tasks that wait for each other.
func (b *Batch) Check() error {
	if b.Slots < 0 || b.MaxFails < 0 {
		return fmt.Errorf("%d tasks at once and %d failures: neither can be less than 0", b.Slots, b.MaxFails)
	}
	names := map[string]int{}
	for i, t := range b.Tasks {
		switch first, twice := names[t.Name], t.Name != "" && names[t.Name] > 0; {
		case len(t.Argv) == 0 || t.Argv[0] == "":
			return fmt.Errorf("task %s has no command", b.Label(i+1))
		case t.Retries < 0:
			return fmt.Errorf("task %s has %d retries: that can't be less than 0", b.Label(i+1), t.Retries)
		case twice:
			return fmt.Errorf("tasks %d and %d have the same name: %s", first, i+1, t.Name)
		}
		names[t.Name] = i + 1
		for _, n := range t.After {
			if n < 1 || n > len(b.Tasks) {
				return fmt.Errorf("task %s waits for task %d, and there is none", b.Label(i+1), n)
			}
		}
	}
	return b.checkOrder()
}

// checkOrder returns an error if tasks wait for each other.
func (b *Batch) checkOrder() error {
	waiting, followers := make([]int, len(b.Tasks)), b.listFollowers()
	var free []int
	for i, t := range b.Tasks {
		if waiting[i] = len(t.After); waiting[i] == 0 {
			free = append(free, i+1)
		}
	}
	for len(free) > 0 {
		n := free[len(free)-1]
		free = free[:len(free)-1]
		for _, f := range followers[n] {
			if waiting[f-1]--; waiting[f-1] == 0 {
				free = append(free, f)
			}
		}
	}
	var circle []string
	for i, n := range waiting {
		if n > 0 {
			circle = append(circle, b.Label(i+1))
		}
	}
	if circle != nil {
		return fmt.Errorf("these tasks wait for each other: %s", strings.Join(circle[:min(len(circle), 10)], ", "))
	}
	return nil
}

// listFollowers returns for each task the tasks that wait for it, both by number.
func (b *Batch) listFollowers() map[int][]int {
	all := map[int][]int{}
	for i, t := range b.Tasks {
		for _, n := range t.After {
			all[n] = append(all[n], i+1)
		}
	}
	return all
}

// Label names a task for people: its number, and its name if it has one.
func (b *Batch) Label(n int) string {
	if name := b.Tasks[n-1].Name; name != "" {
		return fmt.Sprintf("%d (%s)", n, name)
	}
	return fmt.Sprint(n)
}

// Find returns the number of the task with this number or name.
func (b *Batch) Find(word string) (n int, err error) {
	if _, err := fmt.Sscanf(word, "%d", &n); err == nil && fmt.Sprint(n) == word && n >= 1 && n <= len(b.Tasks) {
		return n, nil
	}
	if i := slices.IndexFunc(b.Tasks, func(t Task) bool { return t.Name == word && word != "" }); i >= 0 {
		return i + 1, nil
	}
	return 0, fmt.Errorf("batch %s has %d tasks, and none is %s", b.Name, len(b.Tasks), word)
}
