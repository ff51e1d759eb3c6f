// Package engine is the protocol between the berth command and a program that drives another
// container engine (berth-containerd). The command parses all that people type and prints
// all tables; the program speaks with the engine, and is a program of its own so that
// what it needs for that slows no other start.
//
// A request is a JSON document in a file without a name that the program inherits. Run
// and Exec become the program: exit codes, signals and terminals are its own. All other
// verbs are calls: the program writes Messages to a second descriptor, and ends. A call is
// cancelled when its standard input ends, which is a pipe from the command.
//
// The two are of one version: neither tolerates what it doesn't know of the other.
package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/launcher"
	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/image"
	"github.com/berth-gpu/berth/launcher/image/registry"
)

// Descriptors that the program inherits.
const (
	RequestFD = 3
	ReplyFD   = 4 // of calls
)

// Request is what the program is asked for.
type Request struct {
	// Verb is one of run and exec, which become the program, and list, stop, signal,
	// wait, remove, images, pull, rmi and prune, which are calls. So are fetch, which pulls
	// an image into Store, login and logout; these need no engine.
	Verb string `json:"verb"`
	// Address is the engine's socket.
	Address string `json:"address"`
	// Config is the configuration's file, and Berth the command to say errors by.
	Config string `json:"config"`
	Berth  string `json:"berth"`
	// Access is how registries are reached.
	Access registry.Access `json:"access"`

	Run  *Run                 `json:"run,omitempty"`
	Exec *control.ExecOptions `json:"exec,omitempty"`
	// Task is the task's id.
	Task   string        `json:"task,omitempty"`
	Grace  time.Duration `json:"grace,omitempty"`
	Signal int           `json:"signal,omitempty"`
	Force  bool          `json:"force,omitempty"`

	// Image and Search are of pull and fetch, Store is of fetch and the directory of berth's
	// own images, Selection is of rmi and prune.
	Image     string           `json:"image,omitempty"`
	Store     string           `json:"store,omitempty"`
	Search    image.Search     `json:"search"`
	Selection *image.Selection `json:"selection,omitempty"`

	Login *Login `json:"login,omitempty"` // of login and logout
}

// Login is an account at a registry.
type Login struct {
	Host string `json:"host"`
	// User and Password are "" for logout, and for a login with what is kept already.
	User     string `json:"user,omitempty"`
	Password string `json:"password,omitempty"`
}

// LoggedIn is what login and logout answer.
type LoggedIn struct {
	// Found says that credentials of the registry were kept already.
	Found bool `json:"found"`
	// Unchecked says that the registry asks for no account, and so has compared nothing.
	Unchecked bool `json:"unchecked,omitempty"`
	// Helper is the credential helper that keeps the login now, "" for Access.LoginFile.
	Helper string `json:"helper,omitempty"`
	// First is the file whose credentials pulls use now, "" for none.
	First string `json:"first,omitempty"`
}

// Run is a task to be run.
type Run struct {
	Options launcher.Options `json:"options"`
	// Devices are the words of a request, "" for none.
	Devices string `json:"devices,omitempty"`
	// Detach returns as soon as the task runs; Options.Detach isn't for other engines.
	Detach bool `json:"detach,omitempty"`
	// Wait is how long to wait for busy devices; less than zero is for ever.
	Wait time.Duration `json:"wait,omitempty"`
}

// Pulled is what a pull answers.
type Pulled struct {
	Name   string `json:"name"` // in full
	Layers int    `json:"layers"`
}

// Message is a part of what a call answers: progress, and then a value, an error, or both,
// where a part was done.
type Message struct {
	Progress *image.Progress `json:"progress,omitempty"`
	Value    json.RawMessage `json:"value,omitempty"`
	Error    *Failure        `json:"error,omitempty"`
}

// Write puts a request into a file that has no name, and that a program can inherit.
func (r Request) Write() (*os.File, error) {
	data, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("tell the engine's program: %w", err)
	}
	fd, err := unix.MemfdCreate("berth-request", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("tell the engine's program: %w", err)
	}
	f := os.NewFile(uintptr(fd), "request")
	_, err = f.Write(data)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("tell the engine's program: %w", err), f.Close())
	}
	return f, nil
}

// Read reads a request.
func Read(r io.Reader) (Request, error) {
	var req Request
	if err := json.NewDecoder(r).Decode(&req); err != nil {
		return req, fmt.Errorf("read the request: %w", err)
	}
	return req, nil
}

// Receive reads the messages of a call, tells of progress, and returns the value.
func Receive(r io.Reader, progress func(image.Progress)) (json.RawMessage, error) {
	for dec := json.NewDecoder(r); ; {
		var m Message
		if err := dec.Decode(&m); err != nil {
			return nil, fmt.Errorf("the engine's program ended without an answer: %w", err)
		}
		switch {
		case m.Progress != nil:
			if progress != nil {
				progress(*m.Progress)
			}
		case m.Error != nil:
			return m.Value, m.Error
		default:
			return m.Value, nil
		}
	}
}

// Reply writes the end of a call.
func Reply(w io.Writer, value any, err error) error {
	var m Message
	if err != nil {
		f := NewFailure(err)
		m.Error = &f
	}
	var failed error
	if m.Value, failed = json.Marshal(value); failed != nil {
		return failed
	}
	return json.NewEncoder(w).Encode(m)
}
