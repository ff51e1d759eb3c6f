// Package verb has what all verbs of berth share: the configuration and the node that a command line names, its
// errors with their exit codes and advice, signals, and what refuses a wrong command line or a user who isn't root.
//
// It prints nothing but errors, and doesn't import the packages of verbs or package output.
package verb

import (
	"errors"
	"fmt"
	"os"
	"strings"

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

// ExitError carries an exit code of its own; Err may be nil when the command
// that berth ran has already said what there was to say.
type ExitError struct {
	Code int
	Err  error
}

func (e ExitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

func (e ExitError) Unwrap() error { return e.Err }

// WithCode gives an error an exit code of its own, see ExitError.
func WithCode(code int, err error) error { return ExitError{code, err} }

// WrongUsage rephrases what the flag parser says: double dashes, the nearest flag,
// and where the usage is. For run and alloc it is berth's failure, as docker has it.
func WrongUsage(c *cli.Context, err error, _ bool) error {
	text, flags := writeLongFlags(err.Error()), c.App.Flags
	if c.Command != nil && c.Command.Name != "berth" {
		flags = c.Command.Flags
	}
	if flag, ok := strings.CutPrefix(text, "there is no flag "); ok {
		if why := othertools.ExplainFlag(c.Command.Name, flag); why != "" {
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

// WrongCommandLine is a mistake on the command line of the verb that c is about.
func WrongCommandLine(c *cli.Context, text string) error {
	verb := "berth"
	if c.Command != nil && c.Command.HelpName != "" {
		verb = c.Command.HelpName // with the verbs above it
	}
	return NewUsageError(c, fmt.Sprintf("%s; %s --help shows the usage", text, verb))
}

// NewUsageError: for run, exec and alloc it is berth's failure.
func NewUsageError(c *cli.Context, text string) error {
	err := UsageError{Err: errors.New(text)}
	if c.Command != nil && TakesCommand(c.Command) {
		return WithCode(ExitBerth, err)
	}
	return err
}

// NameRequest names the request in an error that begins with its words.
func NameRequest(err error) error {
	var busy *ledger.BusyError
	var match *match.Error
	if err != nil && (errors.As(err, &busy) || errors.As(err, &match)) {
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

// PrintError prints a line about something that failed. Every such line of berth's goes
// through it, for strangers have written parts of them: names, commands, registries' answers.
func PrintError(line string) { fmt.Fprintln(os.Stderr, printable.Line("berth: "+line)) }

// longNames lists flags as they are typed.
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

// WithBerthCode gives errors of run and alloc the code 125 unless they have their own.
func WithBerthCode(err error) error {
	var exit ExitError
	if err == nil || errors.As(err, &exit) {
		return err
	}
	return WithCode(ExitBerth, err)
}

// UnknownFilter returns the error for a filter that does not exist.
func UnknownFilter(key string, known []string) error {
	return fmt.Errorf("there is no filter %q%s: %s are known", key, spell.Suggestion(key, known...), strings.Join(known, ", "))
}

// TakesCommand reports whether flags behind the first word of a verb are those of the command that it runs.
func TakesCommand(verb *cli.Command) bool {
	return verb.Name == "run" || verb.Name == "exec" || verb.Name == "alloc"
}

// IsFlag reports whether a word of the command line looks like a flag.
func IsFlag(word string) bool { return len(word) > 1 && word[0] == '-' }
