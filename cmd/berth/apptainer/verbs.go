package apptainer

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/internal/spell"
	store "github.com/berth-gpu/berth/launcher/image"
)

// likeVersion is the version of Apptainer whose command line berth accepts.
const likeVersion = "1.4.5"

// printVersion prints berth's version. For a program that has the name of Apptainer it is in the form in which scripts read Apptainer's: berth's own
// is build metadata, as Semantic Versioning has it.
func printVersion(c *cli.Context) error {
	text := "berth version " + c.App.Version
	switch {
	case c.Bool(likeFlag) && c.Command.Name == "version":
		text = likeVersion + "+berth"
	case c.Bool(likeFlag):
		text = "apptainer version " + likeVersion + "+berth"
	}
	_, err := fmt.Fprintln(c.App.Writer, text)
	return err
}

// likeFlag is the hidden flag that AddVerb adds for a program with the name of Apptainer.
const likeFlag = "like-apptainer"

func versionVerb() *cli.Command {
	return &cli.Command{
		Name: "version", Hidden: true, Flags: []cli.Flag{&cli.BoolFlag{Name: likeFlag, Hidden: true}},
		OnUsageError: wrongUsage, Action: printVersion,
	}
}

// otherVerbs returns the verbs of Apptainer that berth doesn't support, each with its replacement.
func otherVerbs() map[string]string {
	const (
		build   = "berth makes no images: apptainer, docker, podman and buildah do"
		sign    = "berth signs no SIF files: apptainer sign does, and berth apptainer verify verifies signatures"
		servers = "key servers aren't asked: gpg --recv-keys gets a key, and berth apptainer key import FILE takes it"
		cache   = "berth images lists pulled images, berth prune --all removes them and pulled SIF files, and berth system df shows their disk space"
		login   = "berth login REGISTRY logs in, berth logout REGISTRY logs out"
		push    = "berth pushes no images: apptainer, oras, skopeo and podman do"
		library = "berth neither searches nor changes a library of SIF files; library://PATH is an image of it"
		admin   = "there is no such setting: /etc/berth/config.toml has berth's"
		sif     = "berth changes no SIF files; berth apptainer inspect shows one"
	)
	return map[string]string{
		"build": build, "push": push, "sign": sign, "keyserver": servers, "cache": cache,
		"registry": login, "remote": login, "search": library, "delete": library, "sif": sif, "overlay": "--overlay keeps changes in a directory, or in a file that mke2fs -t ext3 FILE 1G makes",
		"oci": "berth run -d starts a task, berth ps lists tasks, and berth stop ends one", "plugin": admin, "config": admin, "capability": admin, "checkpoint": "there are no checkpoints", "test": "berth apptainer exec IMAGE /.singularity.d/test runs an image's test",
	}
}

// reportVerb is the action of berth apptainer without one of its verbs.
func reportVerb(c *cli.Context) error {
	name := c.Args().First()
	switch {
	case c.Bool("version"):
		return printVersion(c)
	case name == "help" && c.Args().Get(1) != "":
		return withCode(cli.ShowCommandHelp(c, c.Args().Get(1)))
	case name == "" || name == "help":
		return cli.ShowSubcommandHelp(c)
	}
	if serves := otherVerbs()[name]; serves != "" {
		return withCode(fmt.Errorf("apptainer %s: %s", name, serves))
	}
	known := slices.Collect(maps.Keys(otherVerbs()))
	for _, v := range c.Command.Subcommands {
		if !v.Hidden {
			known = append(known, v.Name)
		}
	}
	slices.Sort(known)
	return withCode(verb.WrongCommandLine(c, fmt.Sprintf("there is no verb \"apptainer %s\"%s", name, spell.Suggestion(name, known...))))
}

func wrongUsage(c *cli.Context, err error, isSub bool) error {
	return withCode(verb.WrongUsage(c, err, isSub))
}

func pullVerb() *cli.Command {
	return &cli.Command{
		Name: "pull", Usage: "pull an image", ArgsUsage: "[FILE] IMAGE",
		Description: "A SIF file, oras://NAME or library://PATH, is written to FILE (default: NAME_TAG.sif).\n" +
			"For docker://NAME no SIF file is written: exec, run and shell find the image by its name. They pull an\n" +
			"image that is missing; this verb gets the newest one. Credentials are those of berth login, docker\nlogin and podman login.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "force", Aliases: []string{"F"}, Usage: "replace an existing FILE"},
			&cli.StringFlag{Name: "dir", Usage: "write FILE in the directory `DIR`"},
			&cli.StringFlag{Name: "library", Usage: "pull library:// images from the server `ADDRESS`"},
			&cli.BoolFlag{Name: "disable-cache", Hidden: true}, // the registry is asked always
			&cli.StringFlag{Name: "name", Hidden: true},        // Singularity's FILE
		},
		OnUsageError: wrongUsage, Action: func(c *cli.Context) error { return withCode(pullImage(c)) },
	}
}

func pullImage(c *cli.Context) error {
	words := c.Args().Slice()
	if len(words) == 0 {
		return verb.WrongCommandLine(c, "pull takes an image: berth apptainer pull oras://registry.example/app:1")
	}
	if len(words) > 2 {
		return verb.WrongCommandLine(c, fmt.Sprintf("pull takes one image, got %q", words))
	}
	ref, file := words[len(words)-1], c.String("name")
	if len(words) == 2 {
		file = words[0]
	}
	if err := checkReference(ref); err != nil {
		return err
	}
	isSIF := isRemoteSIF(ref)
	switch {
	case !isSIF && !strings.HasPrefix(ref, "docker://"):
		return fmt.Errorf("%s: pull takes an image of a registry, such as docker://debian:13; what is on this machine needs no pull", ref)
	case !isSIF && (file != "" || c.IsSet("dir")):
		return fmt.Errorf("pull writes no SIF file: berth apptainer exec %s pulls the image and runs it", ref)
	}
	conf, err := verb.LoadConfig(c)
	if err != nil {
		return err
	}
	if isSIF {
		return pullSIF(c, conf, ref, file)
	}
	got, use, err := unpackReference(c, conf, ref, store.Always)
	if err != nil {
		return err
	}
	if err := errors.Join(os.Remove(use.Name()), use.Close()); err != nil {
		return err
	}
	verb.PrintError(fmt.Sprintf("no SIF file is written: berth apptainer exec %s runs the image", ref))
	fmt.Println(got.Name)
	return nil
}

// isApptainer reports whether a program has the name of Apptainer.
func isApptainer(program string) bool {
	return slices.Contains([]string{"apptainer", "singularity"}, filepath.Base(program))
}
