package verb

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/gpu/match"
	"github.com/berth-gpu/berth/isolation/ledger"
	"github.com/berth-gpu/berth/launcher"
	"github.com/berth-gpu/berth/launcher/engine"
	"github.com/berth-gpu/berth/launcher/image"
	"github.com/berth-gpu/berth/launcher/rootfs"
)

func TestExitStatus(t *testing.T) {
	busy := &ledger.BusyError{Request: "2", Wanted: 2, Free: 1, Total: 8}
	waited := &ledger.BusyError{Request: "2", Wanted: 2, Free: 1, Total: 8, Waited: time.Second}
	failed := engine.NewFailure(fmt.Errorf("2 asked; waited 1s%.0w%.0w", match.ErrBusy, engine.ErrWaited))
	for _, c := range []struct {
		name string
		err  error
		code int
		line string
	}{
		{"anything", errors.New("read x: broken"), 1, "read x: broken"},
		{"several lines", errors.New("read x:\n  broken"), 1, "read x: broken"},
		{"usage", UsageError{Err: errors.New("there is no flag --x")}, 2, "there is no flag --x"},
		{"the command's own code", ExitError{Code: 3}, 3, ""},
		{"berth's failure", ExitError{Code: ExitBerth, Err: errors.New("no cgroup")}, 125, "no cgroup"},
		{"usage of run", ExitError{Code: ExitBerth, Err: UsageError{Err: errors.New("there is no flag --x")}}, 125, "there is no flag --x"},
		{"busy", busy, 75, "2: 2 asked, 1 of 8 free; wait for them with --wait, or see berth leases"},
		{"busy in run", ExitError{Code: ExitBusy, Err: NameRequest(busy)}, 75, "request 2: 2 asked, 1 of 8 free; wait for them with --wait, or see berth leases"},
		{"busy in alloc", WithBerthCode(NameRequest(busy)), 75, "request 2: 2 asked, 1 of 8 free; wait for them with --wait, or see berth leases"},
		{"waited", WithBerthCode(NameRequest(waited)), 75, "request 2: 2 asked, 1 of 8 free; waited 1s; see berth leases"},
		{"waited at another engine", ExitError{Code: ExitBusy, Err: &failed}, 75, "2 asked; waited 1s; see berth leases"},
		{"too many", WithBerthCode(fmt.Errorf("x: %w", match.ErrTooMany)), 125, "x: " + match.ErrTooMany.Error() + "; berth gpus lists the node's devices"},
		{"unknown", fmt.Errorf("x: %w", match.ErrUnknown), 1, "x: " + match.ErrUnknown.Error() + "; berth gpus lists the node's devices"},
		{"lost", fmt.Errorf("x: %w", match.ErrLost), 1, "x: " + match.ErrLost.Error() + "; see berth gpus, and the kernel's log for the reason"},
		{"corrupt", &ledger.FileError{Path: "l", Kind: ledger.ErrCorrupt, Why: "cut"}, 1, "l: ledger is corrupt: cut; berth repair rebuilds it from the running holders"},
		{"a stranger's", &ledger.FileError{Path: "l", Kind: ledger.ErrOwnership, Why: "mode"}, 1, "l: ledger could have been written by others: mode; berth repair takes its ownership back and rebuilds it from the running holders"},
		{"future", &ledger.FileError{Path: "l", Kind: ledger.ErrFuture, Why: "version 9"}, 1, "l: ledger was written by a newer version of berth: version 9; install that version or a newer one"},
		{"no such lease", fmt.Errorf("release x: %w", ledger.ErrNotFound), 1, "release x: no such lease; berth leases lists all leases"},
		{"no driver", berth.ErrNoDriver, 1, berth.ErrNoDriver.Error() + "; load the NVIDIA driver, or set host.driver_root in /etc/berth/config.toml"},
		{"no runtime", launcher.ErrNoRuntime, 1, "no OCI runtime; install crun or runc, or set runtime in /etc/berth/config.toml"},
		{"no image", fmt.Errorf("x %w", image.ErrNoImage), 1, "x is no image; berth pull NAME pulls an image, and berth images lists pulled images"},
		{"this platform", fmt.Errorf("image is for linux/%s, and linux/s390x is wanted%.0w", runtime.GOARCH, image.ErrPlatform), 1, "image is for linux/" + runtime.GOARCH + ", and linux/s390x is wanted; it is an image for this machine: leave out --platform"},
		{"another platform", fmt.Errorf("image is for linux/s390x%.0w", image.ErrPlatform), 1, "image is for linux/s390x; docker build --platform linux/" + runtime.GOARCH + " makes one for this machine, and --platform takes another one that there is"},
		{"no glibc", &rootfs.MissingInterpreter{Program: "/usr/bin/nvidia-smi", Interpreter: "/lib64/ld-linux-x86-64.so.2"}, 1, "command not found: /usr/bin/nvidia-smi needs /lib64/ld-linux-x86-64.so.2, which isn't in the image; use an image with glibc, such as one of Debian or Ubuntu"},
		{"no musl", &rootfs.MissingInterpreter{Program: "/x", Interpreter: "/lib/ld-musl-x86_64.so.1"}, 1, "command not found: /x needs /lib/ld-musl-x86_64.so.1, which isn't in the image; use an image with musl, such as one of Alpine"},
		{"no shell", &rootfs.MissingInterpreter{Program: "/x", Interpreter: "/bin/bash"}, 1, "command not found: /x needs /bin/bash, which isn't in the image; use an image that has it, or mount it with -v"},
		{"file of another", &fs.PathError{Op: "open", Path: "x", Err: fs.ErrPermission}, 1, "open x: permission denied"},
		{"interrupted", ExitError{Code: 130, Err: Interrupted{2}}, 130, "interrupted (interrupt)"},
		{"cancelled", context.Canceled, 1, "context canceled"},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, line := ExitStatus(c.err)
			line = strings.TrimSuffix(line, "; this needs root: use sudo") // where the tests aren't root
			if code != c.code || line != c.line {
				t.Errorf("got %d %q, want %d %q", code, line, c.code, c.line)
			}
		})
	}
}

func TestNameRequest(t *testing.T) {
	match := &match.Error{Err: match.ErrTooMany, Request: "9", Wanted: 9, Total: 8}
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"nothing", nil, "<nil>"},
		{"of a request", match, "request " + match.Error()},
		{"of something else", errors.New("read ledger: broken"), "read ledger: broken"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := fmt.Sprint(NameRequest(c.err)); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestWriteLongFlags(t *testing.T) {
	for said, want := range map[string]string{
		"flag provided but not defined: -gpu":                             "there is no flag --gpu",
		"flag provided but not defined: -z":                               "there is no flag -z",
		`invalid value "x" for flag -cpus: parse error`:                   `invalid value "x" for flag --cpus: it is not a number`,
		`invalid boolean value "x" for -no-wait: parse error`:             `invalid value "x" for --no-wait: it is not true or false`,
		"flag needs an argument: -memory":                                 "flag needs an argument: --memory",
		`invalid value "-1s" for flag -wait: give a duration, not - or x`: `invalid value "-1s" for flag --wait: give a duration, not - or x`,
	} {
		if got := writeLongFlags(said); got != want {
			t.Errorf("%q became %q, want %q", said, got, want)
		}
	}
}

// TestExitTable: the table has each exit code.
func TestExitTable(t *testing.T) {
	for _, code := range []int{ExitFailure, ExitUsage, ExitBusy, ExitBerth, ExitNoExec, ExitNotFound} {
		if !slices.ContainsFunc(ExitCodes(), func(e exitCode) bool { return e.Code == code }) {
			t.Errorf("the table doesn't have %d", code)
		}
	}
}
