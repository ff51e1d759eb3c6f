package apptainer

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
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
	return &cli.Command{
		Name: "key", Usage: "list and change the OpenPGP keys that verify SIF files", ArgsUsage: "list | import FILE | remove FINGERPRINT",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "global", Aliases: []string{"g"}, Usage: "use the admin's keyring: apptainer.keyring in /etc/berth/config.toml"},
			&cli.StringFlag{Name: "keysdir", Aliases: []string{"d"}, Usage: "use the keyring in the directory `DIR` (default: ~/.apptainer/keys)"},
		},
		OnUsageError: wrongUsage, Action: func(c *cli.Context) error { return withCode(useKeyring(c)) },
	}
}

// useKeyring changes or lists the keyring that the flags choose.
func useKeyring(c *cli.Context) error {
	change, err := parseKeyringChange(c)
	if err != nil {
		return err
	}
	conf, err := verb.LoadConfig(c)
	if err != nil {
		return err
	}
	if change.Path, change.Public = localKeyring(c), c.Bool("global"); change.Public {
		change.Path = conf.Apptainer.GlobalKeyring()
	}
	keys, err := backend.ChangeKeyring(c.Context, change)
	if err != nil || change.Import != "" || change.Remove != "" {
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

// parseKeyringChange returns the change for the words of the verb, without a keyring.
func parseKeyringChange(c *cli.Context) (change sif.KeyringChange, err error) {
	const wrong = "key takes list, import and a file, or remove and a fingerprint"
	switch word, arg := c.Args().First(), c.Args().Get(1); {
	case word == "list" && c.NArg() == 1:
		return change, nil
	case word == "import" && c.NArg() == 2:
		return sif.KeyringChange{Import: arg}, nil
	case word == "remove" && c.NArg() == 2:
		change.Remove, err = sif.ParseFingerprint(arg)
		return change, err
	case slices.Contains([]string{"export", "newpair", "pull", "push", "search"}, word):
		return change, fmt.Errorf("apptainer key %s: gpg makes, exports and gets keys, and berth apptainer key import FILE takes public ones", word)
	}
	return change, verb.WrongCommandLine(c, wrong)
}
