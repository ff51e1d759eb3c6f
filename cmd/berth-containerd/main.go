// Command berth-containerd does what needs large libraries: it pulls images, verifies signatures, and runs
// tasks with berth --engine containerd. It has no command line: the berth command replaces
// itself by it (exec) or runs it as a child (package engine).
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/internal/printable"
	"github.com/berth-gpu/berth/launcher/containerd"
	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/engine"
	"github.com/berth-gpu/berth/launcher/image"
	"github.com/berth-gpu/berth/launcher/image/credentials"
	"github.com/berth-gpu/berth/launcher/image/registry"
	"github.com/berth-gpu/berth/launcher/image/resolver"
	"github.com/berth-gpu/berth/launcher/sif"
	"github.com/berth-gpu/berth/launcher/sif/signature"
	"github.com/berth-gpu/berth/launcher/supervise"
)

// version is set by the linker.
var version = "unknown"

func main() {
	if len(os.Args) > 4 && os.Args[1] == "ended" { // started by berth-monitor
		os.Exit(handleTaskEnd(os.Args[2], os.Args[3], os.Args[4], os.Args[5:]))
	}
	if len(os.Args) == 2 && os.Args[1] == credentials.ChildArgument { // started by this program as another user
		if err := credentials.Serve(context.Background(), os.Stdin, os.Stdout); err != nil {
			os.Exit(1)
		}
		return
	}
	if len(os.Args) > 1 {
		fmt.Println("berth-containerd version " + version + ": only the berth command starts it")
		return
	}
	os.Exit(serve())
}

func serve() int {
	req, err := readRequest()
	if err != nil {
		fmt.Fprintln(os.Stderr, printable.Line("berth: "+err.Error()))
		return supervise.CodeFailed
	}
	if req.Verb == "run" || req.Verb == "exec" {
		return runForeground(req)
	}
	return serveCall(req)
}

// handleTaskEnd records the end of a detached task. berth-monitor starts it; its output is discarded.
func handleTaskEnd(address, config, id string, codes []string) int {
	code := -1
	for _, text := range codes {
		n, err := strconv.Atoi(text)
		if err != nil {
			return 1
		}
		code = n
	}
	ctx := context.Background()
	e, err := connectEngine(ctx, engine.Request{Address: address, Config: config})
	if err != nil {
		return 1
	}
	defer e.Close() //nolint:errcheck // nothing is on its way
	if e.HandleTaskEnd(ctx, id, code) != nil {
		return 1
	}
	return 0
}

// readRequest reads the request of the berth command from RequestFD.
func readRequest() (engine.Request, error) {
	f := os.NewFile(engine.RequestFD, "request")
	unix.CloseOnExec(engine.RequestFD)
	req, err := engine.Read(f)
	return req, errors.Join(err, f.Close())
}

// runForeground runs "run" or "exec" in this process and returns its exit code. On an error this
// process replaces itself by the berth command, which prints it.
func runForeground(req engine.Request) int {
	code, err := runVerb(req)
	if err == nil {
		return code
	}
	f := engine.NewFailure(err)
	f.Code = code
	return execReport(req, f)
}

func runVerb(req engine.Request) (int, error) {
	// Signals that come before the engine listens have their default actions.
	ctx := context.Background()
	e, err := connectEngine(ctx, req)
	if err != nil {
		return supervise.CodeFailed, err
	}
	defer e.Close() //nolint:errcheck // nothing is on its way
	if req.Verb == "exec" {
		t, err := e.Task(ctx, req.Task)
		if err != nil {
			return supervise.CodeFailed, err
		}
		return e.Exec(ctx, t, *req.Exec)
	}
	req.Run.Options.Progress = printPullProgress(time.Now())
	id, code, err := e.Run(ctx, *req.Run, req.Run.Wait, printWaiting())
	if err == nil && req.Run.Detach {
		_, err = fmt.Println(id)
	}
	return code, err
}

// connectEngine finds the programs that belong to this one, and connects.
func connectEngine(ctx context.Context, req engine.Request) (*containerd.Engine, error) {
	conf, err := berth.LoadConfig(req.Config)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	o := containerd.Options{Address: req.Address, Config: conf, Access: req.Access, Self: self}
	for name, to := range map[string]*string{"berth-runtime": &o.Runtime, "berth-monitor": &o.Logger} {
		if *to, err = control.FindProgram(name, "/usr/bin"); err != nil {
			return nil, err
		}
	}
	return containerd.Connect(ctx, o)
}

// execReport executes berth engine-failed, which prints the error with its advice. It returns only if
// that fails.
func execReport(req engine.Request, f engine.Failure) int {
	words, err := json.Marshal(f)
	if err == nil {
		err = unix.Exec(req.Berth, []string{"berth", "--config", req.Config, "engine-failed", string(words)}, os.Environ())
	}
	fmt.Fprintln(os.Stderr, printable.Line(fmt.Sprintf("berth: %s (and then: %v)", f.Text, err)))
	return f.Code
}

// printPullProgress returns a function that prints the progress of a pull that takes long to
// standard error.
func printPullProgress(start time.Time) func(image.Progress) {
	var last time.Time
	return func(p image.Progress) {
		now := time.Now()
		if now.Sub(start) < time.Second || now.Sub(last) < time.Second || p.Total == 0 {
			return
		}
		last = now
		fmt.Fprintf(os.Stderr, "berth: pulling the image: %d of %d MB\n", p.Done>>20, p.Total>>20)
	}
}

// printWaiting returns a function that prints to standard error what a request waits for,
// each time that this changes.
func printWaiting() containerd.Waiting {
	last := ""
	return func(err error) {
		if text := err.Error(); text != last {
			last = text
			fmt.Fprintln(os.Stderr, printable.Line("berth: waiting: "+text))
		}
	}
}

// serveCall handles one call of the berth command and writes the reply.
func serveCall(req engine.Request) int {
	reply := os.NewFile(engine.ReplyFD, "reply")
	unix.CloseOnExec(engine.ReplyFD)
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGHUP)
	defer stop()
	signal.Ignore(unix.SIGINT) // the terminal sends it to the berth command too, which ends this process
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // until the command ends or is killed
		stop()
	}()
	value, err := dispatch(ctx, req, func(p image.Progress) {
		_ = json.NewEncoder(reply).Encode(engine.Message{Progress: &p}) // the berth command may have ended
	})
	if err := engine.Reply(reply, value, err); err != nil {
		fmt.Fprintln(os.Stderr, printable.Line("berth: "+err.Error()))
		return 1
	}
	return 0
}

func dispatch(ctx context.Context, req engine.Request, progress func(image.Progress)) (any, error) {
	switch req.Verb {
	case "fetch":
		return pullIntoStore(ctx, req, progress)
	case "fetch-sif":
		return pullSIF(ctx, req, progress)
	case "login":
		return logIn(ctx, req.Access, *req.Login)
	case "logout":
		return logOut(ctx, req.Access, req.Login.Host)
	case "verify":
		return verifyFile(ctx, *req.Verification)
	case "keyring":
		return signature.ChangeKeyring(ctx, *req.Keyring)
	}
	e, err := connectEngine(ctx, req)
	if err != nil {
		return nil, err
	}
	defer e.Close() //nolint:errcheck // nothing is on its way
	switch req.Verb {
	case "list":
		return e.List(ctx)
	case "images":
		return e.Images(ctx)
	case "pull":
		return e.Pull(ctx, req.Image, req.Search, progress)
	case "prune":
		return e.Prune(ctx, *req.Selection)
	}
	return dispatchTask(ctx, e, req)
}

// pullIntoStore pulls an image into berth's own store.
func pullIntoStore(ctx context.Context, req engine.Request, progress func(image.Progress)) (engine.Pulled, error) {
	store := image.Store{Dir: req.Store}
	req.Search.Connect = func(ctx context.Context, n registry.Name) (image.Repository, error) {
		return resolver.Open(ctx, req.Access, n)
	}
	img, err := store.Open(ctx, "docker://"+req.Image, req.Search)
	if err != nil {
		return engine.Pulled{}, err
	}
	defer img.Close()
	_, err = store.Unpack(ctx, img, progress)
	return engine.Pulled{Name: img.Name, Layers: img.Layers()}, err
}

// pullSIF pulls a SIF file into berth's own store and returns its path.
func pullSIF(ctx context.Context, req engine.Request, progress func(image.Progress)) (string, error) {
	store := image.Store{Dir: req.Store}
	if path, found := strings.CutPrefix(req.Image, "library://"); found {
		from, err := resolver.OpenLibrary(req.Access, req.Library, path, runtime.GOARCH)
		if err != nil {
			return "", err
		}
		d, err := from.Resolve(ctx)
		if err != nil {
			return "", err
		}
		return store.FetchSIFBlob(ctx, registry.Name{Host: req.Library, Repository: path}, from, d, progress)
	}
	name, err := registry.Parse(strings.TrimPrefix(req.Image, "oras://"))
	if err != nil {
		return "", err
	}
	from, err := resolver.Open(ctx, req.Access, name)
	if err != nil {
		return "", err
	}
	return store.FetchSIF(ctx, name, from, progress)
}

// verifyFile verifies the signatures of the inherited file, and returns the result for each that was looked at. With v.Covered there are none.
func verifyFile(ctx context.Context, v sif.Verification) (verdicts []sif.Verdict, err error) {
	f := os.NewFile(engine.FileFD, "image")
	unix.CloseOnExec(engine.FileFD)
	defer f.Close() // only read
	if len(v.Covered) > 0 {
		return nil, signature.Check(ctx, f, v)
	}
	err = signature.Verify(ctx, f, v, func(one sif.Verdict) bool {
		verdicts = append(verdicts, one)
		return false
	})
	return verdicts, err
}

// dispatchTask handles the verbs that act on one task.
func dispatchTask(ctx context.Context, e *containerd.Engine, req engine.Request) (any, error) {
	t, err := e.Task(ctx, req.Task)
	if err != nil {
		return nil, err
	}
	switch req.Verb {
	case "stop":
		return nil, e.Stop(ctx, t, req.Grace)
	case "signal":
		return nil, e.Signal(ctx, t, syscall.Signal(req.Signal))
	case "wait":
		return e.Wait(ctx, t)
	case "remove":
		return nil, e.Remove(ctx, t, req.Force)
	}
	return nil, fmt.Errorf("verb %q is not known", req.Verb)
}
