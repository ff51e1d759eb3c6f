package credentials

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/berth-gpu/berth/internal/printable"
	"github.com/berth-gpu/berth/internal/process"
	"github.com/berth-gpu/berth/launcher/image/registry"
)

// Find returns the login of the first of the files that has one for a name, and the path of that file. A
// missing login is not an error.
func Find(ctx context.Context, files []registry.CredentialFile, n registry.Name) (Login, string, error) {
	for len(files) > 0 {
		// Adjacent files of one user share a child process.
		req := request{Verb: "find", Name: n}
		user := files[0].User
		for len(files) > 0 && sameUser(files[0].User, user) {
			req.Paths, files = append(req.Paths, files[0].Path), files[1:]
		}
		r, err := perform(ctx, user, req)
		if err != nil || r.Path != "" {
			return r.Login, r.Path, err
		}
	}
	return Login{}, "", nil
}

func sameUser(a, b *registry.User) bool { return a == b || a != nil && b != nil && *a == *b }

// Store stores a login in a file of docker's format, or in the credential helper that the file names for
// the registry. It returns the helper's name, "" for the file. The file gets mode 0600 and is replaced
// atomically; its other contents stay.
func Store(ctx context.Context, file registry.CredentialFile, host string, l Login) (helper string, err error) {
	r, err := perform(ctx, file.User, request{Verb: "store", Paths: []string{file.Path}, Name: registry.Name{Host: host}, Login: l})
	return r.Helper, err
}

// Erase removes the login of a registry from a file of docker's format, and from the credential
// helper that the file names. It returns whether there was one.
func Erase(ctx context.Context, file registry.CredentialFile, host string) (found bool, err error) {
	r, err := perform(ctx, file.User, request{Verb: "erase", Paths: []string{file.Path}, Name: registry.Name{Host: host}})
	return r.Found, err
}

// request is the input of a child process, as JSON.
type request struct {
	Verb  string // find, store or erase
	Paths []string
	Name  registry.Name
	Login Login
}

// result is the output of a child process, as JSON. Error is set instead of all else.
type result struct {
	Login
	Path, Helper string
	Found        bool
	Error        string
}

// perform executes a request in this process, or in a child process if user isn't this process's user.
func perform(ctx context.Context, user *registry.User, req request) (result, error) {
	if user != nil && int(user.UID) != os.Geteuid() {
		return performAs(ctx, *user, req)
	}
	var r result
	var err error
	switch req.Verb {
	case "find":
		r.Login, r.Path, err = findIn(ctx, req.Paths, req.Name)
	case "store":
		r.Helper, err = storeIn(ctx, req.Paths[0], req.Name.Host, req.Login)
	case "erase":
		r.Found, err = eraseIn(ctx, req.Paths[0], req.Name.Host)
	default:
		err = fmt.Errorf("verb %q is not known", req.Verb)
	}
	return r, err
}

// ChildArgument is the only argument of the child process, which is the calling program itself. A
// program that calls Find, Store or Erase for other users must call [Serve] if it gets this argument.
const ChildArgument = "credentials"

const (
	maxWait   = 2 * time.Minute // for a child process, which its user can stop
	maxResult = maxCredentials + 4096
)

// performAs executes a request in a child process with the uid and gid of user, and no other group. The
// user can kill or stop the child, or forge its answer, so performAs bounds the time and the size of the
// answer.
func performAs(ctx context.Context, user registry.User, req request) (r result, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("as user %d: %w", user.UID, err)
		}
	}()
	for i, path := range req.Paths {
		if req.Paths[i], err = filepath.Abs(path); err != nil {
			return r, err
		}
	}
	input, err := json.Marshal(req)
	if err != nil {
		return r, err
	}
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, "/proc/self/exe", ChildArgument)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: user.UID, Gid: user.GID}, // and no other group
		Setsid:     true,                                              // it must not type into root's terminal (TIOCSTI)
	}
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + user.Home, "XDG_RUNTIME_DIR=/run/user/" + strconv.FormatUint(uint64(user.UID), 10)} //nolint:forbidigo // credential helpers are looked up in it
	cmd.Stdin, cmd.Stdout = bytes.NewReader(input), &limitedWriter{&out, maxResult}
	cmd.WaitDelay = time.Second
	if err = process.StartApart(cmd); err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return r, fmt.Errorf("run %s: %w", ChildArgument, err)
	}
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		return result{}, fmt.Errorf("read the answer of %s: %w", ChildArgument, err)
	}
	if r.Error != "" {
		return result{}, errors.New(printable.Line(r.Error))
	}
	return r, nil
}

// limitedWriter returns an error after left bytes.
type limitedWriter struct {
	io.Writer
	left int
}

func (w *limitedWriter) Write(p []byte) (int, error) {
	if w.left -= len(p); w.left < 0 {
		return 0, errors.New("the answer is too long")
	}
	return w.Writer.Write(p)
}

// Serve is the main function of the child process. It reads one request from in, executes it with this
// process's rights, and writes the result to out. An error of the request is part of the result.
func Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	var req request
	if err := json.NewDecoder(in).Decode(&req); err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	r, err := perform(ctx, nil, req)
	if err != nil {
		r = result{Error: err.Error()}
	}
	return json.NewEncoder(out).Encode(r)
}
