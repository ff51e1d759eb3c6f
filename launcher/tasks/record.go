// Package tasks keeps what is known of launched tasks: one directory for each, with
// small files that are replaced in one step. There is no daemon and no database.
//
//	DATA/tasks/ID/task.json   what was asked for and how it was made (Record)
//	DATA/tasks/ID/run.json    its current life, written by its monitor (Life)
//	DATA/tasks/ID/exit.json   how it ended; there only when all was given back (Exit)
//	DATA/tasks/ID/spare       room for the last two on a full disk
//	DATA/tasks/ID/stopped     somebody wants it to end, and no restart
//	DATA/tasks/ID/remove      it has ended, nothing is to be kept, and its removal failed
//	DATA/tasks/ID/log         its output (package monitor)
//	DATA/names/NAME           a link that says which task has the name
//	STATE/attach/ID.sock      where its monitor listens
//	STATE/attach/ID.stopped   as DATA/tasks/ID/stopped, where no file could be made there
//
// Whether a task runs is never written down: it is derived from its processes and its
// cgroup (Derive), so no kill and no reboot can make it wrong. The package starts and
// ends nothing.
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

// Version of the three files. A reader refuses any other, and ignores fields that it
// doesn't know.
const Version = 1

// Record is what was asked for. It is written before the task's container is made and
// doesn't change afterwards.
type Record struct {
	Version int       `json:"version"`
	ID      string    `json:"id"`
	Name    string    `json:"name"`
	Image   string    `json:"image"`            // as asked
	Digest  string    `json:"digest,omitempty"` // of its manifest; "" for a directory
	Command []string  `json:"command"`
	Created time.Time `json:"created"`
	BootID  string    `json:"boot_id"`
	// Maker is the launcher: whoever makes the container, and for a task in the
	// foreground whoever waits for it.
	Maker Process `json:"maker"`
	// User is who asked, UID and GID what the command runs as.
	User int    `json:"user"`
	UID  uint32 `json:"uid"`
	GID  uint32 `json:"gid"`

	Detached bool `json:"detached,omitempty"`
	// Queued: the task's id was reported while the task waited for devices. A later failure to start
	// is recorded as the task's end.
	Queued      bool `json:"queued,omitempty"`
	Remove      bool `json:"rm,omitempty"` // nothing is kept at the end
	Terminal    bool `json:"tty,omitempty"`
	Interactive bool `json:"interactive,omitempty"`

	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`

	// Request and Devices (UUIDs or CDI names) are those of the lease; "" and none
	// without one. Shared: the lease is that of a berth alloc around the task.
	Request string   `json:"request,omitempty"`
	Lease   string   `json:"lease,omitempty"`
	Shared  bool     `json:"shared,omitempty"`
	Devices []string `json:"devices,omitempty"`
	// Removed is what the container would have had without berth. Notes has the same as
	// text, and is all that older versions wrote.
	Removed []edits.Removal `json:"removed,omitempty"`
	Notes   []string        `json:"notes,omitempty"`

	Runtime     string `json:"runtime"`      // absolute path
	RuntimeRoot string `json:"runtime_root"` // its --root
	Cgroup      string `json:"cgroup"`       // all of the task; the container's is below it
	CgroupMount string `json:"cgroup_mount,omitempty"`

	// Layers of the root, the topmost first, or with Writable the directory that is
	// the image: for whoever has to mount it again.
	Layers   []string `json:"layers,omitempty"`
	Writable bool     `json:"writable,omitempty"`

	// CPUs in list format on which the container is started, where the machine has no cpusets.
	// Of a rank alone.
	CPUs string `json:"cpus,omitempty"`
	// Gang is set in a gang's record, Member in that of one of its ranks.
	Gang   *Gang   `json:"gang,omitempty"`
	Member *Member `json:"member,omitempty"`

	Restart    Restart  `json:"restart"`
	StopSignal int      `json:"stop_signal,omitempty"` // 0 means SIGTERM
	Grace      Duration `json:"grace,omitempty"`       // between it and SIGKILL; 0 means ten seconds, less for ever
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

// MonitorsCgroup is the cgroup of monitors, and of launchers that wait for devices: beside those of the
// tasks.
func (r Record) MonitorsCgroup() string { return filepath.Join(filepath.Dir(r.Cgroup), "monitors") }

// Process names a process for good, by its start in clock ticks since the boot.
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`
}

// Duration in nanoseconds.
type Duration int64

// LogLimit bounds the log of a detached task.
type LogLimit struct {
	Size  int64 `json:"size,omitempty"`  // bytes of one file; 0 means 10 MiB
	Files int   `json:"files,omitempty"` // how many there are at most; 0 means 3
}

// Life is the task's current life. A task that is started again has a new one.
type Life struct {
	Version int `json:"version"`
	// Init is the container's first process.
	Init     Process   `json:"init"`
	Started  time.Time `json:"started"`
	Restarts int       `json:"restarts,omitempty"` // lives before this one
	BootID   string    `json:"boot_id"`
	// Monitor watches over it.
	Monitor Process `json:"monitor"`
	// Ended is set as soon as it is known how this life ended, while its remains
	// are being removed, or the next one is waited for.
	Ended *Exit `json:"ended,omitempty"`
}

// Exit is how a task ended.
type Exit struct {
	Version int `json:"version"`
	// Code is the command's, or 128 and Signal's number.
	Code   int  `json:"code"`
	Signal int  `json:"signal,omitempty"`
	OOM    bool `json:"oom,omitempty"` // the kernel killed for want of memory
	// Unknown: nobody saw how it ended, and Code stands for that.
	Unknown bool `json:"unknown,omitempty"`
	// Error is what else is to be said, such as why the code isn't known.
	Error    string    `json:"error,omitempty"`
	Started  time.Time `json:"started"`
	Finished time.Time `json:"finished"`
	Restarts int       `json:"restarts,omitempty"`
}

// Limits of what is read, and so of what is written: a record can hold a long command.
const (
	maxRecord = 1 << 20
	maxLife   = 64 << 10
)

// errVersion: the file was written by a berth of another time.
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

// parse reads the version first: what else a later one holds may not fit.
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

// idLength is that of an id: twelve hex digits, as people know from docker.
const idLength = 12

// NewID returns a random id.
func NewID() string {
	var b [idLength / 2]byte
	rand.Read(b[:]) // never fails, by its contract
	return hex.EncodeToString(b[:])
}

// ValidID says whether a word has the form of a task's id.
func ValidID(id string) bool {
	return len(id) == idLength && strings.Trim(id, "0123456789abcdef") == ""
}
