package apptainer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/backend"
	"github.com/berth-gpu/berth/cmd/berth/output"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/internal/printable"
	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/launcher/sif"
)

func verifyVerb() *cli.Command {
	return &cli.Command{
		Name: "verify", Usage: "verify the signatures of a SIF file", ArgsUsage: "IMAGE",
		Description: "Without --key, the OpenPGP keys are those of ~/.apptainer/keys/pgp-public and of the admin's keyring,\n" +
			"/etc/apptainer/global-pgp-public or apptainer.keyring in /etc/berth/config.toml. Key servers are never asked.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "all", Aliases: []string{"a"}, Usage: "with --legacy-insecure, verify each object"},
			&cli.IntFlag{Name: "group-id", Aliases: []string{"g"}, Usage: "verify the objects of the group `ID`"},
			&cli.IntFlag{Name: "sif-id", Aliases: []string{"i"}, Usage: "verify the object `ID`"},
			&cli.BoolFlag{Name: "json", Aliases: []string{"j"}, Usage: "print JSON as Apptainer does"},
			&cli.StringFlag{Name: "key", Usage: "verify with the public key in the PEM file `FILE`", TakesFile: true},
			&cli.BoolFlag{Name: "legacy-insecure", Usage: "verify signatures of the older format, which cover no header"},
			&cli.BoolFlag{Name: "local", Aliases: []string{"l"}, Hidden: true}, // as always
			&cli.StringFlag{Name: "url", Aliases: []string{"u"}, Hidden: true},
			&cli.StringFlag{Name: "certificate", Hidden: true}, &cli.StringFlag{Name: "certificate-intermediates", Hidden: true},
			&cli.StringFlag{Name: "certificate-roots", Hidden: true}, &cli.BoolFlag{Name: "ocsp-verify", Hidden: true},
		},
		OnUsageError: wrongUsage, Action: func(c *cli.Context) error { return withCode(verifyImage(c)) },
	}
}

func verifyImage(c *cli.Context) error {
	if c.NArg() != 1 {
		return verb.WrongCommandLine(c, "verify takes an image: berth apptainer verify image.sif")
	}
	if c.IsSet("url") {
		return errors.New("--url: key servers aren't asked: gpg --recv-keys gets a key, and berth apptainer key import FILE takes it")
	}
	if c.IsSet("certificate") {
		return errors.New("--certificate: certificates aren't checked; openssl x509 -pubkey -noout prints the public key of one, for --key")
	}
	conf, err := verb.LoadConfig(c)
	if err != nil {
		return err
	}
	v := sif.Verification{Keyrings: []string{conf.Apptainer.GlobalKeyring(), localKeyring(c)}, PublicKey: c.String("key"), Legacy: c.Bool("legacy-insecure"), LegacyAll: c.Bool("all")}
	for flag, to := range map[string]*[]uint32{"group-id": &v.Groups, "sif-id": &v.Objects} {
		switch id := c.Int(flag); {
		case !c.IsSet(flag):
		case id <= 0 || id > math.MaxUint32:
			return verb.WrongCommandLine(c, fmt.Sprintf("--%s %d: there is no such id", flag, id))
		default:
			*to = []uint32{uint32(id)}
		}
	}
	name := c.Args().First()
	f, st, err := openPath(name)
	if err != nil {
		return err
	}
	defer f.Close() // only read
	if st.IsDir() {
		return fmt.Errorf("%s is a directory: SIF files have signatures", name)
	}
	verdicts, err := backend.Verify(c.Context, f, v)
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	if c.Bool("json") {
		return errors.Join(output.PrintJSON(os.Stdout, describeVerdicts(verdicts)), err)
	}
	var b strings.Builder
	for _, one := range verdicts {
		printVerdict(&b, one, conf.Apptainer.GlobalKeyring())
	}
	_, failed := io.WriteString(os.Stdout, b.String())
	return errors.Join(failed, err)
}

// printVerdict prints the result of a signature as Apptainer 1.4.5 does. global is the admin's keyring.
func printVerdict(w io.Writer, v sif.Verdict, global string) {
	if k := v.Signer; k != nil {
		label := "[LOCAL]"
		if k.Keyring == global {
			label = "[GLOBAL]"
		}
		if k.Name != "" {
			fmt.Fprintf(w, "%-18s Signing entity: %s\n", label, printable.Line(k.Name))
		}
		fmt.Fprintf(w, "%-18s Fingerprint: %s\n", label, k.Fingerprint)
	}
	if len(v.Objects) > 0 {
		const row = "%-4s|%-8s|%-8s|%s\n"
		fmt.Fprintf(w, "Objects verified:\n"+row+"------------------------------------------------\n", "ID", "GROUP", "LINK", "TYPE")
		for _, o := range v.Objects {
			link := formatID(o.Link)
			if o.LinksGroup {
				link += " (G)"
			}
			fmt.Fprintf(w, row, formatID(o.ID), formatID(o.Group), link, trimDetails(o.Type))
		}
	}
	if v.Error != "" {
		fmt.Fprintf(w, "\nError encountered during signature verification: %s\n", printable.Line(v.Error))
	}
}

func formatID(id uint32) string {
	if id == 0 {
		return "NONE"
	}
	return strconv.FormatUint(uint64(id), 10)
}

// trimDetails returns the type of an object without details.
func trimDetails(kind string) string {
	kind, _, _ = strings.Cut(kind, " (")
	return kind
}

// signerJSON is one object of one signature in Apptainer's JSON.
type signerJSON struct {
	Signer struct {
		Partition, Name, Fingerprint  string
		KeyLocal, KeyCheck, DataCheck bool
	}
}

// verdictsJSON is the JSON of Apptainer 1.4.5.
type verdictsJSON struct {
	Signatures int
	SignerKeys []signerJSON
}

func describeVerdicts(verdicts []sif.Verdict) verdictsJSON {
	all := verdictsJSON{Signatures: len(verdicts)}
	for _, v := range verdicts {
		var one signerJSON
		one.Signer.Name = "unknown"
		if k := v.Signer; k != nil {
			one.Signer.Fingerprint, one.Signer.KeyLocal, one.Signer.KeyCheck = strings.ToLower(k.Fingerprint), true, true
			one.Signer.Name = cmp.Or(k.Name, one.Signer.Name)
		}
		one.Signer.DataCheck = true
		for _, o := range v.Objects {
			one.Signer.Partition = trimDetails(o.Type)
			all.SignerKeys = append(all.SignerKeys, one)
		}
		if v.Changed != nil {
			one.Signer.Partition, one.Signer.DataCheck = trimDetails(v.Changed.Type), false
			all.SignerKeys = append(all.SignerKeys, one)
		}
	}
	return all
}

// checkPolicy returns an error if the admin's configuration doesn't let the image run.
func (i image) checkPolicy(ctx context.Context, name string, conf berth.Config) error {
	if len(conf.Apptainer.SignedBy) == 0 || i.isDir || i.reference != "" {
		return nil
	}
	var accepted []string
	for _, text := range conf.Apptainer.SignedBy {
		fingerprint, err := sif.ParseFingerprint(text)
		if err != nil {
			return fmt.Errorf("apptainer.signed_by in %s: %w", cmp.Or(conf.Path(), berth.ConfigPath), err)
		}
		accepted = append(accepted, fingerprint)
	}
	if err := checkWriters(i.file); err != nil {
		return fmt.Errorf("%s: images have to be signed here: %w", name, err)
	}
	_, err := backend.Verify(ctx, i.file, sif.Verification{
		Keyrings: []string{conf.Apptainer.GlobalKeyring()}, Accepted: accepted, Covered: append([]sif.Partition{i.sif.Root}, i.sif.Overlays...),
	})
	if err != nil {
		return fmt.Errorf("%s: images have to be signed here: %w", name, err)
	}
	return nil
}

// checkWriters returns an error if users other than this one and root can write to a file: they could change it after its signature was verified. The
// process that serves its mount reads it all the time.
func checkWriters(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	isTrusted := func(uid int) bool { return uid == 0 || uid == os.Geteuid() }
	const byOthers = 0o022
	switch {
	case !isTrusted(int(st.Uid)):
		return fmt.Errorf("its owner, user %d, could change it after its signature was verified: cp makes a copy of your own", st.Uid)
	case st.Mode&byOthers != 0:
		return errors.New("others could change it after its signature was verified: chmod go-w")
	}
	server, found, err := findServer(f)
	if err == nil && found && !isTrusted(server) {
		err = fmt.Errorf("user %d serves its file system and could change it after its signature was verified: cp makes a copy of your own", server)
	}
	return err
}

// findServer returns the user that has mounted a file's file system, if a process serves it (FUSE): such a process also determines the file's owner.
func findServer(f *os.File) (uid int, found bool, err error) {
	var system unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &system); err != nil || system.Type != unix.FUSE_SUPER_MAGIC {
		return 0, false, err
	}
	var st unix.Statx_t
	if err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st); err != nil {
		return 0, false, fmt.Errorf("find its mount: %w", err)
	}
	const maxMountInfo = 4 << 20
	table, err := smallfile.Read("/proc/self/mountinfo", maxMountInfo)
	if err != nil {
		return 0, false, err
	}
	for line := range strings.Lines(string(table)) {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] != strconv.FormatUint(st.Mnt_id, 10) {
			continue
		}
		for option := range strings.SplitSeq(words[len(words)-1], ",") { // those of the file system
			if id, isUser := strings.CutPrefix(option, "user_id="); isUser {
				uid, err = strconv.Atoi(id)
				return uid, true, err
			}
		}
	}
	return 0, false, errors.New("its mount names no user that serves the file system (FUSE): cp makes a copy of your own")
}
