// Package protocol has the messages between berth-broker and its clients. docs/broker.md describes them
// for programs in other languages.
//
// A message is one line of JSON. A connection carries one request, and the replies to it: any number of
// replies that say what a request waits for, and then the last one. The broker trusts nothing in a
// message: it takes the caller's process and user from the kernel.
package protocol

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"time"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/match"
	"github.com/berth-gpu/berth/isolation/ledger"
)

// Version of the protocol. A request of another version is refused with the code CodeVersion.
const Version = 1

// The longest messages, in bytes with the newline.
const (
	MaxRequest = 16 << 10
	MaxReply   = 8 << 20
)

// Request is a message of a client. Exactly one of its pointers is set.
type Request struct {
	Version int      `json:"version"`
	Acquire *Acquire `json:"acquire,omitempty"`
	Adopt   *Adopt   `json:"adopt,omitempty"`
	Release *Release `json:"release,omitempty"`
	List    *List    `json:"list,omitempty"`
	Cgroup  *Cgroup  `json:"cgroup,omitempty"`
}

// Acquire asks for a lease of the calling process. The lease's cgroup gets that process, and everything
// that it starts. A process has one lease at most: it gets the same one for the same request again.
type Acquire struct {
	// Request in the words of the request language: "2", "h100:2,mem>=40G".
	Request string `json:"request"`
	// WaitSeconds is how long to wait in the queue; 0 fails at once, a negative number waits for as
	// long as the connection is open.
	WaitSeconds float64 `json:"wait_seconds,omitempty"`
	// Name and Command are shown to the user and to root.
	Name    string `json:"name,omitempty"`
	Command string `json:"command,omitempty"`
	// Descendant is the pid of a descendant of the calling process that gets the lease instead of it. It may be in a user
	// namespace of its own. 0 is the calling process itself.
	Descendant int `json:"descendant,omitempty"`
}

// Cgroup asks for a cgroup without a lease, in which the user may make others: for a container without devices. It is
// below the cgroup that the process is in, and so has its limits. The process is in its child "main/command" afterwards.
type Cgroup struct {
	// Descendant is that of Acquire.
	Descendant int `json:"descendant,omitempty"`
	// Join is the path of an existing cgroup of the user's, with a lease or without, that the process enters instead.
	Join string `json:"join,omitempty"`
}

// maxWait is the longest wait in seconds that is not for ever: about 30 years.
const maxWait = 1e9

// Wait returns WaitSeconds in the form of [ledger.Ask].
func (a Acquire) Wait() time.Duration { return parseWait(a.WaitSeconds) }

func parseWait(seconds float64) time.Duration {
	if seconds < 0 {
		return -1
	}
	return time.Duration(seconds * float64(time.Second))
}

// Adopt asks for a lease of a running process of the caller's user. The lease's cgroup gets that process, its
// descendants, and everything that they start later. The calling process stays where it is unless it is the adopted one.
type Adopt struct {
	PID int `json:"pid"`
	// Request is in the words of the request language. If the processes use devices already, the request must
	// get these.
	Request string `json:"request"`
	// WaitSeconds is that of Acquire.
	WaitSeconds float64 `json:"wait_seconds,omitempty"`
}

// Wait returns WaitSeconds in the form of [ledger.Ask].
func (a Adopt) Wait() time.Duration { return parseWait(a.WaitSeconds) }

// Release ends a lease of the caller's user. If its processes still run, they are killed with Force,
// and without it the request is refused with the code CodeLive.
type Release struct {
	Lease string `json:"lease"`
	Force bool   `json:"force,omitempty"`
}

// List asks for all leases and the queue, as far as the admin shows them (policy.show).
type List struct{}

// Reply is a message of the broker. Exactly one of its pointers is set; after Waiting others follow.
type Reply struct {
	Version  int          `json:"version"`
	Waiting  *Busy        `json:"waiting,omitempty"`
	Granted  *Granted     `json:"granted,omitempty"`
	Released *Released    `json:"released,omitempty"`
	Placed   *Placed      `json:"placed,omitempty"`
	View     *ledger.View `json:"view,omitempty"`
	Error    *Error       `json:"error,omitempty"`
}

// Granted is a new lease. The caller, or the adopted process, is in its cgroup.
type Granted struct {
	Lease ledger.Lease `json:"lease"`
	// Environment has variables for the command, as "NAME=value".
	Environment []string `json:"environment"`
	// Remarks are for the user, such as that a device is in use by a process without a lease.
	Remarks []string `json:"remarks,omitempty"`
	// PIDs of the processes that are in the lease's cgroup, only after Adopt.
	PIDs []int `json:"pids,omitempty"`
}

// Released says that the lease has ended.
type Released struct{}

// Placed is the answer to Cgroup.
type Placed struct {
	// Cgroup is the path of the new cgroup from the root of the tree.
	Cgroup string `json:"cgroup"`
}

// Busy is [ledger.BusyError]. Of foreign holders it has what the admin shows.
type Busy struct {
	Request       string         `json:"request"`
	Wanted        int            `json:"wanted"`
	Free          int            `json:"free"`
	Total         int            `json:"total"`
	Ahead         int            `json:"ahead"`
	WaitedSeconds float64        `json:"waited_seconds"`
	Holders       []ledger.Lease `json:"holders,omitempty"`
	Occupied      []gpu.Occupied `json:"occupied,omitempty"`
}

// NewBusy returns the message for an error.
func NewBusy(e ledger.BusyError) Busy {
	return Busy{e.Request, e.Wanted, e.Free, e.Total, e.Ahead, e.Waited.Seconds(), e.Holders, e.Occupied}
}

// Err returns the error of a message.
func (b Busy) Err() ledger.BusyError {
	return ledger.BusyError{
		Request: b.Request, Wanted: b.Wanted, Free: b.Free, Total: b.Total, Ahead: b.Ahead,
		Waited: time.Duration(b.WaitedSeconds * float64(time.Second)), Holders: b.Holders, Occupied: b.Occupied,
	}
}

// Code says which kind an error is of.
type Code string

// The codes. Clients have to expect others.
const (
	CodeMessage   Code = "message"   // the message can't be read
	CodeVersion   Code = "version"   // of a version that this broker doesn't speak
	CodeLimit     Code = "limit"     // the user has too many requests open
	CodeCaller    Code = "caller"    // the calling process can't have a lease
	CodeForbidden Code = "forbidden" // the lease is another user's, or policy forbids the request
	CodeBusy      Code = "busy"      // the devices are leased to others; Busy has the details
	CodeTooMany   Code = "too_many"  // the node has fewer devices
	CodeUnknown   Code = "unknown"   // the node has no such device
	CodeLost      Code = "lost"      // the devices are out of order
	CodeNotFound  Code = "not_found" // there is no such lease
	CodeLive      Code = "live"      // the lease's processes still run
	CodeFailed    Code = "failed"    // anything else
)

// Error is why a request fails, on one line.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	Busy    *Busy  `json:"busy,omitempty"`
}

func (e *Error) Error() string { return e.Message }

// Unwrap returns the error of other packages that the code stands for, nil if there is none.
func (e *Error) Unwrap() error {
	if e.Code == CodeBusy && e.Busy != nil {
		busy := e.Busy.Err()
		return &busy
	}
	return errorsByCode()[e.Code]
}

func errorsByCode() map[Code]error {
	return map[Code]error{
		CodeBusy: match.ErrBusy, CodeTooMany: match.ErrTooMany, CodeUnknown: match.ErrUnknown, CodeLost: match.ErrLost,
		CodeNotFound: ledger.ErrNotFound, CodeLive: ledger.ErrLive,
	}
}

// CodeOf returns the code of an error of other packages.
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	for code, target := range errorsByCode() {
		if errors.Is(err, target) {
			return code
		}
	}
	return CodeFailed
}

// Errorf returns an error with a code.
func Errorf(code Code, format string, args ...any) error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// ParseRequest reads a request. Its errors are *Error.
func ParseRequest(line []byte) (Request, error) {
	var any struct {
		Version *int `json:"version"`
	}
	switch err := json.Unmarshal(line, &any); {
	case err != nil:
		return Request{}, Errorf(CodeMessage, "the request is not a line of JSON: %v", err)
	case any.Version == nil:
		return Request{}, Errorf(CodeMessage, "the request has no version")
	case *any.Version != Version:
		return Request{}, Errorf(CodeVersion, "the request is of version %d, and this broker speaks version %d", *any.Version, Version)
	}
	var r Request
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return Request{}, Errorf(CodeMessage, "the request can't be read: %v", err)
	}
	asked := 0
	for _, set := range []bool{r.Acquire != nil, r.Adopt != nil, r.Release != nil, r.List != nil, r.Cgroup != nil} {
		if set {
			asked++
		}
	}
	if asked != 1 {
		return Request{}, Errorf(CodeMessage, "the request must have one of acquire, adopt, release, list and cgroup, and has %d", asked)
	}
	var seconds float64
	switch {
	case r.Acquire != nil:
		seconds = r.Acquire.WaitSeconds
	case r.Adopt != nil:
		seconds = r.Adopt.WaitSeconds
	}
	if math.IsNaN(seconds) || seconds > maxWait {
		return Request{}, Errorf(CodeMessage, "wait_seconds is more than %.0f; a negative number waits for ever", maxWait)
	}
	return r, nil
}

// ErrTooLong means that a message is longer than its limit.
var ErrTooLong = errors.New("the message is too long")

// ReadLine reads a message of at most limit bytes, with its newline. The error is io.EOF if there is
// none, io.ErrUnexpectedEOF if it isn't complete, and ErrTooLong.
func ReadLine(from *bufio.Reader, limit int) ([]byte, error) {
	var line []byte
	for {
		part, err := from.ReadSlice('\n')
		if line = append(line, part...); len(line) > limit {
			return nil, ErrTooLong
		}
		switch {
		case err == nil:
			return line, nil
		case errors.Is(err, io.EOF) && len(line) > 0:
			return nil, io.ErrUnexpectedEOF
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

// WriteLine writes a message.
func WriteLine(to io.Writer, message any) error {
	line, err := json.Marshal(message)
	if err != nil {
		return err
	}
	_, err = to.Write(append(line, '\n'))
	return err
}

// ParseReply reads a reply. Fields that this version doesn't know are ignored.
func ParseReply(line []byte) (r Reply, err error) {
	if err := json.Unmarshal(line, &r); err != nil {
		return r, fmt.Errorf("the broker's reply can't be read: %w", err)
	}
	if r.Version != Version && r.Error == nil {
		return r, fmt.Errorf("the broker's reply is of version %d, and this berth speaks version %d", r.Version, Version)
	}
	return r, nil
}

// SocketPath returns the broker's socket in a state directory.
func SocketPath(state string) string { return filepath.Join(state, "broker.sock") }
