package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"strings"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/gpu/match"
	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/internal/printable"
	"github.com/berth-gpu/berth/internal/spell"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/launcher"
	"github.com/berth-gpu/berth/launcher/engine"
	"github.com/berth-gpu/berth/launcher/image"
	"github.com/berth-gpu/berth/launcher/image/registry"
	"github.com/berth-gpu/berth/launcher/overlay"
	"github.com/berth-gpu/berth/launcher/rootfs"
	"github.com/berth-gpu/berth/launcher/supervise"
)

// usageError is a mistake on the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// exitError carries an exit code of its own; err may be nil when the command
// that berth ran has already said what there was to say.
type exitError struct {
	code int
	err  error
}

func (e exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e exitError) Unwrap() error { return e.err }

// wrongUsage rephrases what the flag parser says: double dashes, the nearest flag,
// and where the usage is. For run and alloc it is berth's failure, as docker has it.
func wrongUsage(c *cli.Context, err error, _ bool) error {
	text, flags := longFlags(err.Error()), c.App.Flags
	if c.Command != nil && c.Command.Name != "berth" {
		flags = c.Command.Flags
	}
	if flag, ok := strings.CutPrefix(text, "there is no flag "); ok {
		if why := explainAbsentFlag(c.Command.Name, flag); why != "" {
			return newUsageError(c, why)
		}
		text += didYouMean(flag, longNames(flags))
		if n := strings.TrimLeft(flag, "-"); c.Command.Name == "kill" {
			if _, err := supervise.ParseSignal(n); err == nil {
				text += ": berth kill -s " + n + " sends that signal"
			}
		}
		if flag == "--gpus" && c.Command.Name == "alloc" {
			text += ": the request is the first word, as in berth alloc 2 -- python train.py"
		}
	}
	return wrongCommandLine(c, text)
}

// wrongCommandLine is a mistake on the command line of the verb that c is about.
func wrongCommandLine(c *cli.Context, text string) error {
	verb := "berth"
	if c.Command != nil && c.Command.HelpName != "" {
		verb = c.Command.HelpName // with the verbs above it
	}
	return newUsageError(c, fmt.Sprintf("%s; %s --help shows the usage", text, verb))
}

// newUsageError: for run, exec and alloc it is berth's failure.
func newUsageError(c *cli.Context, text string) error {
	err := usageError{errors.New(text)}
	if c.Command != nil && takesCommand(c.Command) {
		return exitError{exitBerth, err}
	}
	return err
}

// nameRequest names the request in an error that begins with its words.
func nameRequest(err error) error {
	var busy *ledger.BusyError
	var match *match.Error
	if err != nil && (errors.As(err, &busy) || errors.As(err, &match)) {
		return fmt.Errorf("request %w", err)
	}
	return err
}

func longFlags(text string) string {
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

// exitStatus turns an error into the exit code and the one line for a person: the
// culprit, and the way out.
func exitStatus(err error) (int, string) {
	code := exitFailure
	var exit exitError
	var usage usageError
	switch {
	case errors.As(err, &exit):
		code = exit.code
		if exit.err == nil {
			return code, ""
		}
	case errors.As(err, &usage):
		code = exitUsage
	}
	if errors.Is(err, match.ErrBusy) {
		code = exitBusy
	}
	return code, printable.Line(err.Error() + adviceFor(err))
}

func adviceFor(err error) string {
	var busy *ledger.BusyError
	var held *lock.HeldError
	var missing *rootfs.MissingInterpreter
	var full diskFull
	switch {
	case errors.As(err, &full):
		return full.advice()
	case needHost() != nil && (errors.Is(err, ledger.ErrOwnership) || errors.Is(err, fs.ErrPermission)):
		return "; " + needHost().Error() // the host's root has another number here
	case errors.As(err, &missing):
		return "; " + interpreterAdvice(path.Base(missing.Interpreter))
	case errors.As(err, &busy) && busy.Waited > 0, errors.Is(err, engine.ErrWaited):
		return "; see berth leases"
	case errors.Is(err, match.ErrBusy):
		return "; wait for them with --wait, or see berth leases"
	case errors.Is(err, match.ErrLost):
		return "; see berth gpus, and the kernel's log for the reason"
	case errors.Is(err, match.ErrUnknown), errors.Is(err, match.ErrTooMany):
		return "; berth gpus shows what there is"
	case errors.As(err, &held) && !errors.Is(err, lock.ErrForeign):
		return "; berth repair --break-lock ends a process of berth's that was stopped"
	case errors.Is(err, ledger.ErrCorrupt), errors.Is(err, berth.ErrLedgerLost):
		return "; berth repair rebuilds it from what runs"
	case errors.Is(err, ledger.ErrOwnership):
		return "; berth repair takes it back and rebuilds it from what runs"
	case errors.Is(err, ledger.ErrFuture):
		return "; install that version again, or newer"
	case errors.Is(err, ledger.ErrNotFound):
		return "; berth leases shows those that there are"
	case errors.Is(err, berth.ErrNoDriver):
		return "; load the NVIDIA driver, or set host.driver_root in " + berth.ConfigPath
	case errors.Is(err, launcher.ErrNoRuntime):
		return "; install crun or runc, or set runtime in " + berth.ConfigPath
	case errors.Is(err, overlay.ErrUpper):
		return "; set data in " + berth.ConfigPath + " to a directory on ext4, xfs, btrfs or tmpfs"
	case errors.Is(err, image.ErrNoImage):
		return "; berth pull NAME gets an image of a registry, and berth images shows those that are here"
	case errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0:
		return "; this needs root: use sudo"
	case (errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.ENOSYS)) && hasSystemCallFilter():
		return "; a system call filter (seccomp) that berth was started under may withhold it"
	case errors.Is(err, unix.ENOSYS):
		return "; berth needs Linux 5.12 or newer"
	}
	return imageAdvice(err)
}

// hasSystemCallFilter reports whether this process was started under a seccomp filter.
func hasSystemCallFilter() bool {
	const filters = 2 // SECCOMP_MODE_FILTER
	mode, err := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0)
	return err == nil && mode == filters
}

// imageAdvice is for pulls and for what keeps images.
func imageAdvice(err error) string {
	switch {
	case errors.Is(err, registry.ErrDenied):
		return "; check the name, or log in with docker login or podman login as the user that berth runs as"
	case errors.Is(err, registry.ErrNotFound):
		return "; check the name and the tag"
	case errors.Is(err, registry.ErrPlain):
		return "; its directory in /etc/containerd/certs.d can allow plain HTTP, with server = \"http://…\" in hosts.toml"
	case errors.Is(err, registry.ErrCertificate):
		return "; its authority belongs into /etc/containerd/certs.d/REGISTRY/ca.crt"
	case errors.Is(err, registry.ErrUnknownHost):
		return "; check the name, DNS and, behind a proxy, HTTPS_PROXY"
	case errors.Is(err, image.ErrNotHere):
		return "; berth pull gets it, and berth images shows those that are here"
	case errors.Is(err, image.ErrUsed):
		return "; berth ps -a shows the tasks, and --force removes the name alone"
	case errors.Is(err, image.ErrNames):
		return "; give one of them, or remove all with --force"
	case isDiskFull(err):
		return diskFull{}.advice()
	}
	return taskAdvice(err)
}

// interpreterAdvice says where the program comes from that a command is started with.
func interpreterAdvice(name string) string {
	switch {
	case strings.HasPrefix(name, "ld-linux"), strings.HasPrefix(name, "ld64.so"):
		return "take an image with glibc, such as one of Debian or Ubuntu"
	case strings.HasPrefix(name, "ld-musl"):
		return "take an image with musl, such as one of Alpine"
	}
	return "take an image that has it, or bring it in with -v"
}

// printError prints a line about something that failed. Every such line of berth's goes
// through it, for strangers have written parts of them: names, commands, registries' answers.
func printError(line string) { fmt.Fprintln(os.Stderr, printable.Line("berth: "+line)) }

// didYouMean is the nearest word as the end of a sentence, or "".
func didYouMean(word string, known []string) string { return spell.Suggestion(word, known...) }

// replacedVerbs is what serves in place of verbs that people know from other programs, and
// that are near to none of berth's.
func replacedVerbs() map[string]string {
	const (
		anew    = "a task begins with a fresh root each time: berth stop ends it, berth run begins another, and --restart does so by itself"
		build   = "berth makes no images: docker build, podman build and buildah do, and berth run takes what they make"
		login   = "berth pull uses what docker login and podman login have kept"
		network = "a task has the host's network, or none: berth run --network"
		volume  = "directories of the host are the volumes: berth run -v DIR:DST"
		files   = "berth run -v DIR:DST shares files with a task, and berth exec -i TASK tar copies them"
		shell   = "berth exec -it TASK bash"
		pause   = "what is paused would keep its GPUs; berth stop ends a task"
		list    = "berth ps -a"
	)
	return map[string]string{
		"build": build, "buildx": build, "commit": build, "tag": build, "push": build, "import": build,
		"compose": "each service is a berth run -d", "up": "each service is a berth run -d", "down": "berth stop and berth rm",
		"ls": list, "list": list, "status": list,
		"cp": files, "diff": files, "export": files,
		"create": "berth run -d makes a task and starts it", "start": anew, "restart": anew, "rename": "berth run --name gives a task its name",
		"shell":  shell,
		"events": "the log of events is events.log in berth's data directory", "history": "skopeo inspect shows an image's layers",
		"load": "berth run docker-archive:FILE takes an archive as it is", "save": "skopeo copy writes archives",
		"login": login, "logout": login, "search": "the registry's own pages search it",
		"network": network, "port": network, "volume": volume,
		"nvidia-smi": "berth gpus", "smi": "berth gpus",
		"pause": pause, "unpause": pause,
		"remove": "berth rm", "delete": "berth rm", "top": "berth stats, or berth exec TASK ps", "update": "limits are those of berth run",
	}
}

// twoWords are docker's verbs above others, and what these are here where that isn't the
// same word. "" is for the group alone.
func twoWords() map[string]map[string]string {
	return map[string]map[string]string{
		"container": {"": "ps -a", "ls": "ps -a", "list": "ps -a", "prune": "rm", "top": "stats"},
		"image":     {"": "images", "ls": "images", "list": "images", "rm": "rmi", "remove": "rmi"},
		"system":    {"": "system df", "df": "system df", "prune": "system prune", "info": "info"},
	}
}

// suggestVerb says what a verb that doesn't exist, and the word behind it, were meant to be, as
// the end of a sentence.
func suggestVerb(app *cli.App, name, next string) string {
	if verbs, is := twoWords()[name]; is {
		switch verb := verbs[next]; {
		case verb != "":
			return ": berth " + verb
		case app.Command(next) != nil:
			return ": berth " + next
		case replacedVerbs()[next] != "":
			name = next
		default:
			return ": berth " + verbs[""]
		}
	}
	for _, verbs := range []map[string]string{replacedVerbs(), otherToolsVerbs()} {
		if serves, known := verbs[name]; known {
			return ": " + serves
		}
	}
	return didYouMean(name, listVerbs(app))
}

func listVerbs(app *cli.App) (names []string) {
	for _, c := range app.VisibleCommands() {
		names = append(names, c.Name)
	}
	return names
}

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

// warner writes what a library logs as lines for people: berth: MESSAGE: ERROR.
type warner struct{ w io.Writer }

func (h warner) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

func (h warner) Handle(_ context.Context, r slog.Record) error {
	parts := []string{"berth: " + r.Message}
	r.Attrs(func(a slog.Attr) bool {
		parts = append(parts, a.Value.String())
		return true
	})
	_, err := fmt.Fprintln(h.w, printable.Line(strings.Join(parts, ": ")))
	return err
}

func (h warner) WithAttrs([]slog.Attr) slog.Handler { return h }

func (h warner) WithGroup(string) slog.Handler { return h }
