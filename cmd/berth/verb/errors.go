// Package verb is shared by all verbs of berth: it opens the configuration and the node that a command line names,
// gives errors exit codes and advice, handles signals, and refuses wrong command lines and users who aren't root.
//
// It prints nothing but errors, and doesn't import the packages of verbs or package output.
package verb

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/cmd/berth/othertools"
	"github.com/berth-gpu/berth/gpu/match"
	"github.com/berth-gpu/berth/internal/printable"
	"github.com/berth-gpu/berth/internal/spell"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/launcher/supervise"
)

// UsageError is a mistake on the command line.
type UsageError struct{ Err error }

func (e UsageError) Error() string { return e.Err.Error() }

func (e UsageError) Unwrap() error { return e.Err }

// ExitError is an error with an exit code. Err is nil if the command that berth ran has
// already printed its error.
type ExitError struct {
	Code int
	Err  error
	// Signal has ended the command; 0 for none, or if it isn't known.
	Signal syscall.Signal
}

func (e ExitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

func (e ExitError) Unwrap() error { return e.Err }

// WithCode returns err with an exit code, see [ExitError].
func WithCode(code int, err error) error { return ExitError{Code: code, Err: err} }

// ExitStatus returns the exit code of an error, and the line to print: the error with its
// advice. The line is "" if there is nothing to print.
func ExitStatus(err error) (int, string) {
	code := ExitFailure
	var exit ExitError
	var usage UsageError
	switch {
	case errors.As(err, &exit):
		code = exit.Code
		if exit.Err == nil {
			return code, ""
		}
	case errors.As(err, &usage):
		code = ExitUsage
	}
	if errors.Is(err, match.ErrBusy) {
		code = ExitBusy
	}
	return code, printable.Line(err.Error() + adviceFor(err))
}

// ReportError prints the line of [ExitStatus], for a verb that goes on after an error.
func ReportError(err error) {
	_, line := ExitStatus(err)
	PrintError(line)
}

// WrongUsage rewrites an error of the flag parser: with double dashes, the nearest flag, and
// the command that prints the usage. For run, exec and alloc it has docker's exit code 125.
func WrongUsage(c *cli.Context, err error, _ bool) error {
	text, flags := writeLongFlags(err.Error()), c.App.Flags
	if c.Command != nil && c.Command.Name != "berth" {
		flags = c.Command.Flags
	}
	if c.Command != nil && c.Command.Name == "run" && strings.Contains(text, " for --mpi: ") {
		return NewUsageError(c, "--mpi takes no value: srun --mpi=pmix or mpirun starts the ranks, and each of them is a berth run --mpi")
	}
	if flag, ok := strings.CutPrefix(text, "there is no flag "); ok {
		if why := othertools.ExplainFlag(c.Command.Name, flag); why != "" && !strings.Contains(c.Command.HelpName, " apptainer ") {
			return NewUsageError(c, why)
		}
		text += spell.Suggestion(flag, longNames(flags)...)
		if n := strings.TrimLeft(flag, "-"); c.Command.Name == "kill" {
			if _, err := supervise.ParseSignal(n); err == nil {
				text += ": berth kill -s " + n + " sends that signal"
			}
		}
		if flag == "--gpus" && c.Command.Name == "alloc" {
			text += ": the request is the first word, as in berth alloc 2 -- python train.py"
		}
	}
	return WrongCommandLine(c, text)
}

// WrongCommandLine returns the error of a wrong command line of c's verb.
func WrongCommandLine(c *cli.Context, text string) error {
	verb := "berth"
	if c.Command != nil && c.Command.HelpName != "" {
		verb = c.Command.HelpName // with its parent verbs
	}
	return NewUsageError(c, fmt.Sprintf("%s; %s --help shows the usage", text, verb))
}

// NewUsageError returns a usage error, for run, exec and alloc with the exit code 125.
func NewUsageError(c *cli.Context, text string) error {
	err := UsageError{Err: errors.New(text)}
	if c.Command != nil && TakesCommand(c.Command) && c.Command.Name != "map" { // its exit code isn't that of a command
		return WithCode(ExitBerth, err)
	}
	return err
}

// NameRequest puts "request" before an error that begins with a request.
func NameRequest(err error) error {
	var busy *ledger.BusyError
	var mismatch *match.Error
	// The broker's errors are only alike to those of package match.
	other := errors.Is(err, match.ErrTooMany) || errors.Is(err, match.ErrUnknown) || errors.Is(err, match.ErrLost)
	if err != nil && (errors.As(err, &busy) || errors.As(err, &mismatch) || other) {
		return fmt.Errorf("request %w", err)
	}
	return err
}

func writeLongFlags(text string) string {
	text = strings.ReplaceAll(text, "flag provided but not defined: ", "there is no flag ")
	if what, ok := strings.CutSuffix(text, ": parse error"); ok {
		kind := "a number"
		if strings.HasPrefix(text, "invalid boolean value") {
			kind = "true or false"
		}
		text = what + ": it is not " + kind
	}
	text = strings.ReplaceAll(text, "invalid boolean value", "invalid value")
	words := strings.Split(text, " ")
	for i, w := range words {
		if name := strings.TrimLeft(w, "-"); len(strings.TrimRight(name, ":")) > 1 && strings.HasPrefix(w, "-") {
			words[i] = "--" + name
		}
	}
	return strings.Join(words, " ")
}

// PrintError prints an error or a warning to standard error as one line. All of berth's verbs
// use it, because it escapes untrusted text: names, commands, replies of registries.
func PrintError(line string) { fmt.Fprintln(os.Stderr, printable.Line("berth: "+line)) }

// longNames returns the long names of flags with their dashes.
func longNames(flags []cli.Flag) (names []string) {
	for _, f := range flags {
		for _, name := range f.Names() {
			if len(name) > 1 {
				names = append(names, "--"+name)
			}
		}
	}
	return names
}

// WithBerthCode gives an error the exit code 125 unless it has one.
func WithBerthCode(err error) error {
	var exit ExitError
	if err == nil || errors.As(err, &exit) {
		return err
	}
	return WithCode(ExitBerth, err)
}

// ShellHint is for a command that is one word with blanks in it.
const ShellHint = "a command and its arguments are words of their own, and sh -c 'LINE' takes a line of shell"

// UnknownFilter returns the error for a filter that does not exist.
func UnknownFilter(key string, known []string) error {
	return fmt.Errorf("there is no filter %q%s: %s are known", key, spell.Suggestion(key, known...), strings.Join(known, ", "))
}

// TakesCommand reports whether flags behind the first word of a verb are those of the command that it runs.
func TakesCommand(verb *cli.Command) bool {
	return verb.Name == "run" || verb.Name == "exec" || verb.Name == "alloc" || verb.Name == "map" || verb.Name == "shell" || verb.Name == "start"
}

// IsFlag reports whether a word of the command line looks like a flag.
func IsFlag(word string) bool { return len(word) > 1 && word[0] == '-' }
