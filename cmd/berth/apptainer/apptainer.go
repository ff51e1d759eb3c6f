// Package apptainer has Apptainer's verbs: exec, run, shell and instance for containers, and pull, inspect, verify and key for images. Images are SIF
// files, directories, and those that are unpacked into berth's store. A command becomes a process of the image, with this user's id, home and
// working directory, and with leased devices. There is no container runtime, and no task that other verbs know: when a shell or a job runner ends the
// command, nothing is left. Only an instance lives on.
//
// A user without root runs the same command line twice: outside a user namespace, where this process gets the image's mount (package
// imagemount) and ends the lease later, and inside (package rootless), where it makes the container (package enter) and becomes the command.
package apptainer

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/leasing"
	"github.com/berth-gpu/berth/cmd/berth/rootless"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/cmd/berth/waiting"
	"github.com/berth-gpu/berth/gpu/request"
)

// AddVerb adds the verb apptainer to the command line of a program that has the name of Apptainer, and removes Apptainer's flags for its own messages.
func AddVerb(args []string) []string {
	if !slices.Contains([]string{"berth-apptainer", "apptainer", "singularity"}, filepath.Base(args[0])) {
		return args
	}
	rest := args[1:]
	for len(rest) > 0 && slices.Contains([]string{"-s", "--silent", "-q", "--quiet", "-v", "--verbose", "-d", "--debug", "--nocolor"}, rest[0]) {
		rest = rest[1:]
	}
	if isApptainer(args[0]) && len(rest) == 1 && (rest[0] == "--version" || rest[0] == "version") {
		return []string{"berth", "apptainer", rest[0], "--" + likeFlag}
	}
	return append([]string{"berth", "apptainer"}, rest...)
}

// Command is berth apptainer.
func Command() *cli.Command {
	return &cli.Command{
		Name:  "apptainer",
		Usage: "run programs of images as Apptainer does",
		Description: "The command is a process of this user's: it has the user's id, home, working directory and /tmp, and\n" +
			"otherwise the files of the image. Of the host's accelerators it has those that it asks for\n" +
			"(--gpus, --nv), as a lease that ends with it.\n\n" +
			"IMAGE is a SIF file or a directory, or one of\n" +
			"  docker://NAME[:TAG]            an image of a registry\n" +
			"  oras://NAME[:TAG]              a SIF file of a registry\n" +
			"  library://PATH[:TAG]           a SIF file of the server apptainer.library in /etc/berth/config.toml\n" +
			"  oci:DIR[:TAG]                  an OCI image layout\n" +
			"  oci-archive:FILE[:TAG]         one in a tar archive\n" +
			"  docker-archive:FILE[:NAME]     what docker save and podman save write\n" +
			"  instance://NAME                a running instance, whose process the command becomes\n\n" +
			"A program berth-apptainer, apptainer or singularity that is a link to berth is this verb.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "version", Usage: "print the version"}, &cli.BoolFlag{Name: likeFlag, Hidden: true},
			&cli.BoolFlag{Name: "silent", Aliases: []string{"s"}, Hidden: true}, &cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Hidden: true},
			&cli.BoolFlag{Name: "verbose", Hidden: true}, &cli.BoolFlag{Name: "debug", Aliases: []string{"d"}, Hidden: true}, &cli.BoolFlag{Name: "nocolor", Hidden: true},
		},
		OnUsageError: wrongUsage, Action: reportVerb,
		Subcommands: []*cli.Command{
			newVerb("exec", "run a command of an image", "IMAGE COMMAND [ARG…]"),
			newVerb("run", "run an image's runscript or entry point", "IMAGE [ARG…]"),
			newVerb("shell", "run a shell of an image", "IMAGE"),
			instanceVerbs(), inspectVerb(), keyVerb(), pullVerb(), verifyVerb(), versionVerb(),
		},
	}
}

func newVerb(name, usage, args string) *cli.Command {
	return &cli.Command{
		Name: name, Usage: usage, ArgsUsage: args, Flags: listFlags(),
		OnUsageError: func(c *cli.Context, err error, isSub bool) error { return withCode(verb.WrongUsage(c, err, isSub)) },
		Action:       func(c *cli.Context) error { return withCode(runVerb(c)) },
	}
}

// Apptainer's exit codes. The command's own are passed on.
const (
	codeFailed   = 255
	codeUsage    = 1
	codeNotFound = 127 // of a runscript
)

// withCode gives an error Apptainer's exit code. The signal that has ended the command ends this process, too, as there.
func withCode(err error) error {
	var exit verb.ExitError
	var wrong verb.UsageError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &wrong):
		return verb.WithCode(codeUsage, err)
	case !errors.As(err, &exit), exit.Code == verb.ExitBerth && exit.Err != nil:
		return verb.WithCode(codeFailed, err)
	case exit.Signal != 0 && slices.Contains(endingSignals(), exit.Signal):
		signal.Reset(exit.Signal)
		_ = unix.Kill(os.Getpid(), exit.Signal)
		time.Sleep(time.Second) // another thread may get it; it may be ignored
	}
	return err
}

// endingSignals are signals that end this process by default, without output of Go's runtime.
func endingSignals() []unix.Signal {
	return []unix.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGKILL, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM, unix.SIGTERM}
}

// describeUsage says what a verb takes, for a command line without it.
func describeUsage(name string) string {
	if name == "exec" {
		return "exec takes an image and a command: berth apptainer exec image.sif python train.py"
	}
	return name + " takes an image: berth apptainer " + name + " image.sif"
}

func runVerb(c *cli.Context) error {
	if c.NArg() == 0 || c.NArg() == 1 && c.Command.Name == "exec" {
		return verb.WrongCommandLine(c, describeUsage(c.Command.Name))
	}
	if err := waiting.CheckFlags(c); err != nil {
		return err
	}
	if err := refuseFlags(c); err != nil {
		return err
	}
	conf, err := verb.LoadConfig(c)
	if err != nil {
		return err
	}
	if name, ok := strings.CutPrefix(c.Args().First(), instanceScheme); ok {
		return joinInstance(c, conf, name)
	}
	wanted, err := devicesRequest(c)
	if err != nil {
		return err
	}
	if verb.IsHelped() || isFirstProcess() {
		return becomeCommand(c, conf, wanted, true)
	}
	if os.Geteuid() == 0 && os.Getenv(imageVariable) != "" && os.Getenv("BERTH_LEASE") != "" { // the child of leasing.Hold
		return becomeCommand(c, conf, wanted, true)
	}
	return runOutside(c, conf, wanted)
}

// runOutside opens the image and runs this process's command line in a child that has a lease or is in a user namespace, or else makes the container itself.
func runOutside(c *cli.Context, conf berth.Config, wanted request.Request) (err error) {
	holder := filepath.Base(os.Args[0])
	if os.Getenv(instanceVariable) != "" {
		files, err := findInstanceFiles()
		if err != nil {
			return err
		}
		go files.endWithStarter()
		holder = instanceScheme + c.Args().Get(1)
	}
	name := c.Args().First()
	if isRemoteSIF(name) {
		if err = checkDevices(c, conf, wanted); err == nil {
			name, err = fetchSIF(c, conf, name)
		}
		if err != nil {
			return err
		}
	}
	img, err := openImage(name)
	if err != nil {
		return err
	}
	defer img.closeFile()
	if isOn(c, "writable") && !img.isDir && len(img.sif.Overlays) == 0 {
		return errors.New("--writable: SIF files and images of the store never change; --writable-tmpfs keeps changes in memory")
	}
	if err := img.checkPolicy(c.Context, c.Args().First(), conf); err != nil {
		return err
	}
	if err := leasing.NameJob(conf, wanted); err != nil {
		return err
	}
	groups := groupsVariable + "=" + formatGroups()
	asSelf := os.Geteuid() != 0 && !isOn(c, "fakeroot")
	if asSelf && img.isMounted(c) { // the child starts while the image is mounted
		return rootless.RunAsSelf(c, conf, img.startMount(c, conf), imageVariable+"="+helperImage, groups)
	}
	root, err := img.openRoot(c, conf, wanted)
	if err != nil {
		return err
	}
	stack, err := img.addOverlays(c, conf, &root)
	if err != nil {
		return err
	}
	defer stack.waitEnded()
	passed, err := root.passDescriptors()
	if err != nil {
		return err
	}
	switch {
	case asSelf:
		return rootless.RunAsSelf(c, conf, nil, imageVariable+"="+passed, groups)
	case os.Geteuid() != 0:
		if err := errors.Join(os.Setenv(imageVariable, passed), os.Setenv(groupsVariable, formatGroups())); err != nil {
			return err
		}
		return rootless.Run(c, conf)
	}
	if err := verb.NeedHost(); err != nil {
		return err
	}
	if err := os.Setenv(imageVariable, passed); err != nil {
		return err
	}
	if wanted.IsZero() || os.Getenv("BERTH_LEASE") != "" {
		return becomeCommand(c, conf, wanted, false)
	}
	node, err := berth.Open(conf)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return leasing.Hold(c, node, wanted, holder, self, os.Args)
}

// imageVariable is the environment variable by which the process inside finds the image: the number of a file descriptor of its mount,
// layersPrefix, directoryImage, or helperImage for a mount that the process outside sends when it is there.
const (
	imageVariable  = "BERTH_IMAGE"
	directoryImage = "directory"
	helperImage    = "helper"
)

// devicesRequest returns the request of the devices' flags: --nv alone is one GPU, or in a berth alloc all that it has leased.
func devicesRequest(c *cli.Context) (request.Request, error) {
	words, devices := c.String("gpus"), splitWords(c, "device")
	switch {
	case words != "", len(devices) > 0:
	case os.Getenv("BERTH_LEASE") != "":
		words = "all"
	case isOn(c, "nv"), isOn(c, "nvccli"):
		words = "1"
	}
	r, _, err := leasing.ParseDeviceFlags(words, words != "", devices)
	return r, err
}

// refuseFlags returns an error for a flag that berth has not.
func refuseFlags(c *cli.Context) error {
	for _, f := range listRefusals() {
		value := readFlagVariable(f.name)
		if c.IsSet(f.name) || value != "" && (f.value || isTrue(value)) {
			return fmt.Errorf("--%s: %s", f.name, f.reason)
		}
	}
	if isOn(c, "rocm") {
		return errors.New("--rocm: there are no leases for AMD GPUs yet")
	}
	return nil
}
