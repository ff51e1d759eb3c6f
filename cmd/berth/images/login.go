package images

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/internal/printable"
	"github.com/berth-gpu/berth/launcher/engine"
	"github.com/berth-gpu/berth/launcher/image/registry"
)

// LoginCommand is berth login.
func LoginCommand() *cli.Command {
	return &cli.Command{
		Name:      "login",
		Usage:     "log in to a registry, for pulls",
		ArgsUsage: "[REGISTRY]",
		Description: "REGISTRY is a host, such as nvcr.io or registry.example:5000; without one it is docker.io. The registry\n" +
			"checks user name and password. They are stored where docker and podman read them: in\n" +
			"$DOCKER_CONFIG/config.json (~/.docker/config.json), or in the credential helper that this file names.\n" +
			"With sudo it is the file of the user who calls sudo. Stored credentials are checked first.",
		OnUsageError: verb.WrongUsage,
		Action:       logInTo,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "username", Aliases: []string{"u"}, Usage: "log in as `USER`"},
			&cli.StringFlag{Name: "password", Aliases: []string{"p"}, Usage: "`PASSWORD` or token; other users of this machine can see it"},
			&cli.BoolFlag{Name: "password-stdin", Usage: "read the password from standard input"},
		},
	}
}

// LogoutCommand is berth logout.
func LogoutCommand() *cli.Command {
	return &cli.Command{
		Name:         "logout",
		Usage:        "remove the login of a registry",
		ArgsUsage:    "[REGISTRY]",
		Description:  "Without REGISTRY it is docker.io. A login that podman has stored in its own file stays.",
		OnUsageError: verb.WrongUsage,
		Action:       logOutOf,
	}
}

// maxPassword bounds the length of a password, in bytes. Tokens have a few thousand bytes.
const maxPassword = 64 << 10

// newLoginRequest returns the request of login and logout for the registry in the arguments.
func newLoginRequest(c *cli.Context, name string) (*backend.Engine, engine.Request, error) {
	if c.NArg() > 1 {
		return nil, engine.Request{}, verb.WrongCommandLine(c, fmt.Sprintf("%s takes one registry, got %q too", name, c.Args().Get(1)))
	}
	host, err := registry.ParseHost(c.Args().First())
	if err != nil {
		return nil, engine.Request{}, err
	}
	conf, err := verb.LoadConfig(c)
	if err != nil {
		return nil, engine.Request{}, err
	}
	e, err := backend.NewFetcher(c, conf, backend.ImageStore(conf))
	if err != nil {
		return nil, engine.Request{}, err
	}
	req := e.Request
	req.Verb, req.Login = name, &engine.Login{Host: host}
	if req.Access.LoginFile.Path == "" {
		return nil, req, errors.New("find the home directory: neither DOCKER_CONFIG nor HOME is set")
	}
	return e, req, nil
}

func logInTo(c *cli.Context) error {
	e, req, err := newLoginRequest(c, "login")
	if err != nil {
		return err
	}
	name, password, fromInput := c.String("username"), c.String("password"), c.Bool("password-stdin")
	switch {
	case password != "" && fromInput:
		return verb.WrongCommandLine(c, "--password and --password-stdin: give one of them")
	case fromInput && name == "":
		return verb.WrongCommandLine(c, "--password-stdin: it needs --username")
	case password != "":
		fmt.Fprintln(os.Stderr, "WARNING! Other users of this machine can see --password; --password-stdin is safe.")
	case fromInput:
		if password, err = readPassword(os.Stdin); err != nil {
			return err
		}
	}
	if name == "" && password == "" {
		done, err := checkStoredLogin(c, e, req)
		if done || err != nil {
			return err
		}
	}
	in := req.Login
	if in.User, in.Password, err = promptForMissing(c.Context, name, password); err != nil {
		return err
	}
	var r engine.LoggedIn
	if err := e.Call(c.Context, req, &r, nil); err != nil {
		return explainLogin(in.Host, in.User, err)
	}
	printLogin(req, r)
	return nil
}

// checkStoredLogin has the registry check the stored login. done is false if there is none, or if the
// registry refuses it.
func checkStoredLogin(c *cli.Context, e *backend.Engine, req engine.Request) (done bool, err error) {
	var r engine.LoggedIn
	err = e.Call(c.Context, req, &r, nil)
	if errors.Is(err, registry.ErrDenied) {
		fmt.Fprintln(os.Stderr, printable.Line("berth: "+req.Login.Host+" refuses the stored login"))
		return false, nil
	}
	if err != nil || !r.Found {
		return false, explainLogin(req.Login.Host, "", err)
	}
	fmt.Fprintln(os.Stderr, printable.Line("berth: used the login stored in "+r.First))
	fmt.Println("Login Succeeded")
	return true, nil
}

// printLogin prints the result of a login, with warnings about how the password is stored and checked.
func printLogin(req engine.Request, r engine.LoggedIn) {
	file := req.Access.LoginFile.Path
	note := func(text string) { fmt.Fprintln(os.Stderr, printable.Line(text)) }
	if r.Unchecked {
		note("WARNING! " + req.Login.Host + " accepts requests without a login, and has not checked the password.")
	}
	if r.Helper == "" {
		note("WARNING! The password is kept unencrypted in " + file + ".")
		note("To store passwords in a credential helper (docker-credential-…), name it as credsStore in that file.")
	}
	if r.First != "" && r.First != file {
		note("WARNING! Pulls use the login in " + r.First + ", which comes first.")
	}
	fmt.Println("Login Succeeded")
}

// explainLogin adds the registry's name and advice to an error of a login.
func explainLogin(host, user string, err error) error {
	if err == nil {
		return nil
	}
	what := "log in"
	if !strings.Contains(err.Error(), host) || errors.Is(err, registry.ErrNotFound) {
		what += " to " + host
	}
	if errors.Is(err, registry.ErrDenied) {
		if user != "" {
			what += " as " + user
		}
		// Not wrapped: imageAdvice would advise to log in.
		return fmt.Errorf("%s: %s; check user name and password", what, err.Error())
	}
	if errors.Is(err, registry.ErrNotFound) {
		return fmt.Errorf("%s: no registry of images answers there; check its address and port", what)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// promptForMissing prompts for the user name and the password if they are "", the latter without echo.
func promptForMissing(ctx context.Context, name, password string) (string, string, error) {
	if name != "" && password != "" {
		return name, password, nil
	}
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		return "", "", errors.New("standard input is no terminal to prompt on: give --username and --password-stdin")
	}
	if name == "" {
		fmt.Fprint(os.Stderr, "Username: ")
		line, err := readFromTerminal(ctx, func() (string, error) { return bufio.NewReader(os.Stdin).ReadString('\n') })
		if err != nil && !errors.Is(err, io.EOF) {
			return "", "", err
		}
		if name = strings.TrimSpace(line); name == "" {
			return "", "", errors.New("the user name is empty")
		}
	}
	if password == "" {
		fmt.Fprint(os.Stderr, "Password: ")
		typed, err := readFromTerminal(ctx, func() (string, error) {
			b, err := term.ReadPassword(int(os.Stdin.Fd()))
			return string(b), err
		})
		fmt.Fprintln(os.Stderr)
		if err != nil && !errors.Is(err, io.EOF) {
			return "", "", err
		}
		if password = typed; password == "" {
			return "", "", errors.New("the password is empty")
		}
	}
	return name, password, nil
}

// readFromTerminal returns what read reads from the terminal on standard input. The end of ctx ends the
// wait and restores the terminal's settings; the goroutine with read then stays until the process ends.
func readFromTerminal(ctx context.Context, read func() (string, error)) (string, error) {
	state, err := term.GetState(int(os.Stdin.Fd()))
	if err != nil {
		return "", fmt.Errorf("read the terminal: %w", err)
	}
	type typed struct {
		text string
		err  error
	}
	done := make(chan typed, 1)
	go func() {
		text, err := read()
		done <- typed{text, err}
	}()
	select {
	case t := <-done:
		return t.text, t.err
	case <-ctx.Done():
		fmt.Fprintln(os.Stderr)
		return "", errors.Join(context.Cause(ctx), term.Restore(int(os.Stdin.Fd()), state))
	}
}

// readPassword reads a password up to the end of the input, without its line break.
func readPassword(in io.Reader) (string, error) {
	data, err := io.ReadAll(io.LimitReader(in, maxPassword+1))
	if err != nil {
		return "", fmt.Errorf("read the password: %w", err)
	}
	text := strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r")
	switch {
	case text == "":
		return "", errors.New("read the password: standard input is empty")
	case len(text) > maxPassword:
		return "", fmt.Errorf("read the password: it is longer than %d bytes", maxPassword)
	}
	return text, nil
}

func logOutOf(c *cli.Context) error {
	e, req, err := newLoginRequest(c, "logout")
	if err != nil {
		return err
	}
	var r engine.LoggedIn
	if err := e.Call(c.Context, req, &r, nil); err != nil {
		return err
	}
	if r.Found {
		fmt.Println("Removed the login of " + req.Login.Host)
	} else {
		fmt.Println("Not logged in to " + req.Login.Host)
	}
	if r.First != "" {
		fmt.Fprintln(os.Stderr, printable.Line("WARNING! "+r.First+" also has a login of "+req.Login.Host+", which pulls use; podman logout removes it."))
	}
	return nil
}
