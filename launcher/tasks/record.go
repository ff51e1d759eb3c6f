// Package tasks stores the records of tasks: one directory for each task, with small files that are
// replaced atomically. There is no daemon and no database.
//
//	DATA/tasks/ID/task.json   what was asked for and how the task was created (Record)
//	DATA/tasks/ID/run.json    the current life, written by the monitor (Life)
//	DATA/tasks/ID/exit.json   how the task ended, written when everything was released (Exit)
//	DATA/tasks/ID/spare       reserved space for the last two on a full disk
//	DATA/tasks/ID/stopped     a mark: the task is to end and not to be restarted
//	DATA/tasks/ID/remove      a mark: the task has ended, isn't to be kept, and its removal has failed
//	DATA/tasks/ID/log         the output (packages monitor and logs)
//	DATA/names/NAME           a link to the id of the task that has the name
//	STATE/attach/ID.sock      the monitor's socket
//	STATE/attach/ID.stopped   as DATA/tasks/ID/stopped, if no file can be created there
//
// Whether a task runs is never stored: it is derived from the task's processes and cgroup (Derive), so
// that kills and reboots can't make it wrong. The package starts and ends no process.
package tasks

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/internal/json"
)

// Version of the three files. Readers refuse other versions and ignore unknown fields.
const Version = 1

// Record is what was asked for. It is written before the task's container is created and doesn't
// change afterwards.
type Record struct {
	Version int       `json:"version"`
	ID      string    `json:"id"`
	Name    string    `json:"name"`
	Image   string    `json:"image"`            // as asked
	Digest  string    `json:"digest,omitempty"` // of its manifest; "" for a directory
	Command []string  `json:"command"`
	Created time.Time `json:"created"`
	BootID  string    `json:"boot_id"`
	// Maker is the launcher: the process that creates the container and, for a task in the foreground,
	// waits for its end.
	Maker Process `json:"maker"`
	// User is the uid of the launcher. UID and GID are those of the command.
	User int    `json:"user"`
	UID  uint32 `json:"uid"`
	GID  uint32 `json:"gid"`

	Detached bool `json:"detached,omitempty"`
	// Queued means that the task's id was reported while the task waited for devices. A later failure
	// to start is recorded as the task's end.
	Queued      bool `json:"queued,omitempty"`
	Remove      bool `json:"rm,omitempty"` // the task is removed at its end
	Terminal    bool `json:"tty,omitempty"`
	Interactive bool `json:"interactive,omitempty"`

	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`

	// Request and Devices (UUIDs or CDI names) are those of the lease; empty without a lease. Shared
	// means that the lease belongs to a berth alloc around the task.
	Request string   `json:"request,omitempty"`
	Lease   string   `json:"lease,omitempty"`
	Shared  bool     `json:"shared,omitempty"`
	Devices []string `json:"devices,omitempty"`
	// Removed is what was removed from the container's spec. Notes has the same as text; older versions
	// wrote only Notes.
	Removed []edits.Removal `json:"removed,omitempty"`
	Notes   []string        `json:"notes,omitempty"`

	Runtime     string `json:"runtime"`      // absolute path
	RuntimeRoot string `json:"runtime_root"` // its --root
	Cgroup      string `json:"cgroup"`       // the task's; the container's is below it
	CgroupMount string `json:"cgroup_mount,omitempty"`

	// Layers of the root, the topmost first, or with Writable the directory that is the image. They are
	// only set if the monitor may have to mount the root again for a restart.
	Layers   []string `json:"layers,omitempty"`
	Writable bool     `json:"writable,omitempty"`

	// CPUs are the CPUs of a rank in list format, on a machine without the cpuset controller.
	CPUs string `json:"cpus,omitempty"`
	// Gang is set in a gang's record, Member in that of one of its ranks.
	Gang   *Gang   `json:"gang,omitempty"`
	Member *Member `json:"member,omitempty"`

	Restart    Restart  `json:"restart"`
	StopSignal int      `json:"stop_signal,omitempty"` // 0 means SIGTERM
	Grace      Duration `json:"grace,omitempty"`       // from the stop signal to SIGKILL; 0 means ten seconds, less than 0 no SIGKILL
	Timeout    Duration `json:"timeout,omitempty"`     // 0 means none
	Log        LogLimit `json:"log"`
}

// SetRemoved sets Removed and Notes.
func (r *Record) SetRemoved(removed []edits.Removal) {
	r.Removed, r.Notes = removed, nil
	for _, one := range removed {
		r.Notes = append(r.Notes, one.String())
	}
}

// FreezableCgroup returns the cgroup that contains every cgroup in which the task's processes can be frozen by the task,
// for cgroup.Hierarchy.Thaw. Ranks share a PID namespace, so a rank can move the processes of another one to its own cgroup.
func (r Record) FreezableCgroup() string {
	if r.Member != nil {
		return filepath.Dir(r.Cgroup) // the gang's
	}
	return r.Cgroup
}

// MonitorsCgroup returns the cgroup of monitors, and of launchers that wait for devices. It is beside
// the cgroups of the tasks.
func (r Record) MonitorsCgroup() string { return filepath.Join(filepath.Dir(r.Cgroup), "monitors") }

// Process identifies a process by its pid and its start in clock ticks since the boot.
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`
}

// Duration in nanoseconds.
type Duration int64

// LogLimit bounds the log of a detached task.
type LogLimit struct {
	Size  int64 `json:"size,omitempty"`  // bytes of one file; 0 means 10 MiB
	Files int   `json:"files,omitempty"` // maximum number of files; 0 means 3
}

// Life is a task's current life. Each restart begins a new one.
type Life struct {
	Version int `json:"version"`
	// Init is the container's first process.
	Init     Process   `json:"init"`
	Started  time.Time `json:"started"`
	Restarts int       `json:"restarts,omitempty"` // lives before this one
	BootID   string    `json:"boot_id"`
	// Monitor is the task's monitor, or the launcher of a task in the foreground.
	Monitor Process `json:"monitor"`
	// Ended is set as soon as the end of this life is known, before its container is removed and
	// before the next life starts.
	Ended *Exit `json:"ended,omitempty"`
}

// Exit is how a task ended.
type Exit struct {
	Version int `json:"version"`
	// Code is the command's exit code, or 128 plus Signal.
	Code   int  `json:"code"`
	Signal int  `json:"signal,omitempty"`
	OOM    bool `json:"oom,omitempty"` // the kernel has killed a process for lack of memory
	// Unknown means that no process of berth has read the exit status; Code is then 255.
	Unknown bool `json:"unknown,omitempty"`
	// Error is an error or a reason, such as why the code is unknown.
	Error    string    `json:"error,omitempty"`
	Started  time.Time `json:"started"`
	Finished time.Time `json:"finished"`
	Restarts int       `json:"restarts,omitempty"`
}

// Limits of the files in bytes, for readers and writers.
const (
	maxRecord = 1 << 20
	maxLife   = 64 << 10
)

// errVersion means that the file has another version of the format.
var errVersion = errors.New("written by another version of berth")

// ParseRecord reads task.json.
func ParseRecord(data []byte) (Record, error) {
	var r Record
	if err := parse(data, &r, &r.Version); err != nil {
		return Record{}, err
	}
	if !ValidID(r.ID) {
		return Record{}, fmt.Errorf("it has no id of a task: %.20q", r.ID)
	}
	return r, nil
}

// ParseLife reads run.json.
func ParseLife(data []byte) (Life, error) {
	var l Life
	if err := parse(data, &l, &l.Version); err != nil {
		return Life{}, err
	}
	if l.Init.PID < 0 || l.Monitor.PID < 0 {
		return Life{}, errors.New("it has a process with a negative id")
	}
	return l, nil
}

// ParseExit reads exit.json.
func ParseExit(data []byte) (Exit, error) {
	var e Exit
	if err := parse(data, &e, &e.Version); err != nil {
		return Exit{}, err
	}
	return e, nil
}

// parse decodes the version first: other fields of a newer version may have other types.
func parse(data []byte, into any, version *int) error {
	var v struct {
		Version int `json:"version"`
	}
	var codec json.Codec
	if err := codec.Unmarshal(data, &v); err != nil {
		return err
	}
	if v.Version != Version {
		return fmt.Errorf("%w: format %d, and this one knows %d", errVersion, v.Version, Version)
	}
	if err := codec.Unmarshal(data, into); err != nil {
		return err
	}
	*version = v.Version
	return nil
}

// idLength is the length of an id: twelve hex digits, as docker shows them.
const idLength = 12

// NewID returns a random id.
func NewID() string {
	var b [idLength / 2]byte
	rand.Read(b[:]) // never fails, by its contract
	return hex.EncodeToString(b[:])
}

// ValidID reports whether a word has the form of a task's id.
func ValidID(id string) bool {
	return len(id) == idLength && strings.Trim(id, "0123456789abcdef") == ""
}
