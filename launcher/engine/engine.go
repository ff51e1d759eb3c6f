// Package engine implements the protocol between the berth command and a program that drives another
// container engine (berth-containerd). The command parses flags and prints tables. The program talks to
// the engine; it is separate so that its libraries don't slow down the start of berth.
//
// A request is a JSON document in a memfd that the program inherits. For run and exec, the command
// executes the program in its place, so exit code, signals and terminal are the program's. All other
// verbs are calls: the program writes Messages to a second descriptor, and exits. The standard input of
// a call is a pipe from the command; its end cancels the call.
//
// Command and program must be of the same version.
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
	"github.com/berth-gpu/berth/launcher/sif"
)

// Descriptors that the program inherits.
const (
	RequestFD = 3
	ReplyFD   = 4 // of calls
	FileFD    = 5 // the file of the call verify
)

// Request is a request to the program.
type Request struct {
	// Verb is run or exec, which replace the command's process, or one of the calls list, stop, signal,
	// wait, remove, images, pull, rmi and prune. The calls fetch and fetch-sif, which pull an image into Store,
	// login, logout, verify and keyring need no engine.
	Verb string `json:"verb"`
	// Address is the engine's socket.
	Address string `json:"address"`
	// Config is the path of the configuration, and Berth that of the command, which prints errors.
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

	// Image and Search are for pull and fetch. Store is for fetch and fetch-sif: the directory of berth's own images. Image of fetch-sif
	// has its scheme, and Library is the address of the server of library://.
	// Selection is for rmi and prune.
	Image     string           `json:"image,omitempty"`
	Store     string           `json:"store,omitempty"`
	Library   string           `json:"library,omitempty"`
	Search    image.Search     `json:"search"`
	Selection *image.Selection `json:"selection,omitempty"`

	Login *Login `json:"login,omitempty"` // for login and logout

	Verification *sif.Verification  `json:"verification,omitempty"` // for verify
	Keyring      *sif.KeyringChange `json:"keyring,omitempty"`      // for keyring
}

// Login is an account at a registry.
type Login struct {
	Host string `json:"host"`
	// User and Password are "" for logout, and for a login with stored credentials.
	User     string `json:"user,omitempty"`
	Password string `json:"password,omitempty"`
}

// LoggedIn is the result of login and logout.
type LoggedIn struct {
	// Found means that credentials for the registry were stored before.
	Found bool `json:"found"`
	// Unchecked means that the registry requires no account and so hasn't checked the credentials.
	Unchecked bool `json:"unchecked,omitempty"`
	// Helper is the credential helper that stores the login now, "" for Access.LoginFile.
	Helper string `json:"helper,omitempty"`
	// First is the file whose credentials pulls use from now on, "" for none.
	First string `json:"first,omitempty"`
}

// Run describes a task to run.
type Run struct {
	Options launcher.Options `json:"options"`
	// Devices is the text of a request, "" for none.
	Devices string `json:"devices,omitempty"`
	// Detach returns as soon as the task runs. Options.Detach is nil.
	Detach bool `json:"detach,omitempty"`
	// Wait is how long to wait for busy devices; less than zero is for ever.
	Wait time.Duration `json:"wait,omitempty"`
}

// Pulled is the result of a pull.
type Pulled struct {
	Name   string `json:"name"` // in full
	Layers int    `json:"layers"`
}

// Message is a part of a call's answer. The messages of a call are any number with Progress, and a last
// one with a value, an error, or both if a part was done.
type Message struct {
	Progress *image.Progress `json:"progress,omitempty"`
	Value    json.RawMessage `json:"value,omitempty"`
	Error    *Failure        `json:"error,omitempty"`
}

// Write writes a request to a memfd, which a program can inherit.
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

// Receive reads the messages of a call, calls progress, which may be nil, and returns the value.
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

// Reply writes the last message of a call.
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
