package apptainer

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/internal/printable"
	"github.com/berth-gpu/berth/launcher/sif"
)

// localKeyring returns the path of the user's keyring, which is Apptainer's.
func localKeyring(c *cli.Context) string {
	dir := filepath.Join(findAccount().dir, ".apptainer", "keys")
	if settings := os.Getenv("APPTAINER_CONFIGDIR"); settings != "" {
		dir = filepath.Join(settings, "keys")
	}
	for _, named := range []string{os.Getenv("SINGULARITY_SYPGPDIR"), os.Getenv("APPTAINER_KEYSDIR"), c.String("keysdir")} {
		if named != "" {
			dir = named
		}
	}
	return filepath.Join(dir, "pgp-public")
}

func keyVerb() *cli.Command {
	flags := []cli.Flag{
		&cli.BoolFlag{Name: "global", Aliases: []string{"g"}, Usage: "use the admin's keyring: apptainer.keyring in /etc/berth/config.toml"},
		&cli.StringFlag{Name: "keysdir", Aliases: []string{"d"}, Usage: "use the keyring in the directory `DIR` (default: ~/.apptainer/keys)"},
	}
	// change returns the change for the argument of a verb, which is "" for a verb without one.
	sub := func(name, usage, args string, change func(argument string) (sif.KeyringChange, error)) *cli.Command {
		return &cli.Command{
			Name: name, Usage: usage, ArgsUsage: args, Flags: flags, OnUsageError: wrongUsage,
			Action: func(c *cli.Context) error { return withCode(useKeyring(c, change)) },
		}
	}
	return &cli.Command{
		Name: "key", Usage: "list and change the OpenPGP keys that verify SIF files", HideHelpCommand: true, OnUsageError: wrongUsage,
		Action: func(c *cli.Context) error {
			if c.NArg() > 0 {
				return withCode(fmt.Errorf("apptainer key %s: gpg makes, exports and gets keys, and berth apptainer key import FILE takes public ones", c.Args().First()))
			}
			return cli.ShowSubcommandHelp(c)
		},
		Subcommands: []*cli.Command{
			sub("import", "add the public keys of a file to the keyring", "FILE", func(file string) (sif.KeyringChange, error) {
				return sif.KeyringChange{Import: file}, nil
			}),
			sub("list", "list the public keys", "", func(string) (sif.KeyringChange, error) { return sif.KeyringChange{}, nil }),
			sub("remove", "remove a public key from the keyring", "FINGERPRINT", func(text string) (sif.KeyringChange, error) {
				fingerprint, err := sif.ParseFingerprint(text)
				return sif.KeyringChange{Remove: fingerprint}, err
			}),
		},
	}
}

// useKeyring changes or lists the keyring that the flags choose.
func useKeyring(c *cli.Context, newChange func(string) (sif.KeyringChange, error)) error {
	switch args := c.Command.ArgsUsage; {
	case args == "" && c.NArg() > 0:
		return verb.WrongCommandLine(c, "key "+c.Command.Name+" takes no argument")
	case args != "" && c.NArg() != 1:
		return verb.WrongCommandLine(c, "key "+c.Command.Name+" takes one "+args)
	}
	conf, err := verb.LoadConfig(c)
	if err != nil {
		return err
	}
	change, err := newChange(c.Args().First())
	if err != nil {
		return err
	}
	if change.Path, change.Public = localKeyring(c), c.Bool("global"); change.Public {
		change.Path = conf.Apptainer.GlobalKeyring()
	}
	keys, err := backend.ChangeKeyring(c.Context, change)
	if err != nil || c.Command.Name != "list" {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Public key listing (%s):\n\n", printable.Line(change.Path))
	for i, k := range keys {
		fmt.Fprintf(&b, "%d)  User:              %s\n    Creation time:     %s\n    Fingerprint:       %s\n    Length (in bits):  %d\n\n",
			i, printable.Line(k.Name), k.Created, k.Fingerprint, k.Bits)
	}
	_, err = fmt.Fprint(c.App.Writer, b.String())
	return err
}
