package signature

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/ProtonMail/go-crypto/openpgp"

	"github.com/berth-gpu/berth/internal/atomicfile"
	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/launcher/sif"
)

// maxKeyring bounds files with keys in bytes.
const maxKeyring = 16 << 20

// keyring is a set of OpenPGP keys, in the order of their files. The zero value has none.
type keyring []key

// key is a key of a file.
type key struct {
	entity *openpgp.Entity
	path   string
}

func (k key) formatFingerprint() string { return formatFingerprint(k.entity) }

func formatFingerprint(e *openpgp.Entity) string { return fmt.Sprintf("%X", e.PrimaryKey.Fingerprint) }

// readKeyring reads the file of a keyring. A missing file has no keys.
func readKeyring(path string) (keyring, error) {
	data, err := smallfile.Read(path, maxKeyring)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return parseKeyring(path, data)
}

// parseKeyring parses public keys, as in the file pgp-public of Apptainer and in the output of gpg --export, with --armor or without. Keys that can't be
// read are left out, unless all are.
func parseKeyring(path string, data []byte) (all keyring, err error) {
	var found openpgp.EntityList
	switch start := bytes.TrimSpace(data); {
	case len(start) == 0:
	case bytes.HasPrefix(start, []byte("-----BEGIN")):
		found, err = openpgp.ReadArmoredKeyRing(bytes.NewReader(data))
	default:
		found, err = openpgp.ReadKeyRing(bytes.NewReader(data))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for _, e := range found {
		if e.PrivateKey != nil {
			return nil, fmt.Errorf("%s has a secret key: gpg --export writes public ones", path)
		}
		all = append(all, key{e, path})
	}
	return all, nil
}

// selectKeys returns the keys that are accepted.
func (r keyring) selectKeys(accept func(fingerprint string) bool) (chosen keyring) {
	for _, k := range r {
		if accept(k.formatFingerprint()) {
			chosen = append(chosen, k)
		}
	}
	return chosen
}

// hasKey reports whether a key is there.
func (r keyring) hasKey(fingerprint string) bool {
	return len(r.selectKeys(func(f string) bool { return f == fingerprint })) > 0
}

// joinKeyring returns the keys of both. Of a key that is in both, the one of r counts.
func (r keyring) joinKeyring(other keyring) keyring {
	return append(r[:len(r):len(r)], other.selectKeys(func(f string) bool { return !r.hasKey(f) })...)
}

// listEntities returns the keys for the library. It is never nil, which the library takes for no keyring.
func (r keyring) listEntities() openpgp.EntityList {
	all := openpgp.EntityList{}
	for _, k := range r {
		all = append(all, k.entity)
	}
	return all
}

// describeKey describes a key of the keyring.
func (r keyring) describeKey(e *openpgp.Entity) *sif.Key {
	d := &sif.Key{Fingerprint: formatFingerprint(e), Created: e.PrimaryKey.CreationTime.UTC()}
	if id := e.PrimaryIdentity(); id != nil {
		d.Name = id.Name
	}
	if bits, err := e.PrimaryKey.BitLength(); err == nil {
		d.Bits = int(bits)
	}
	for _, k := range r {
		if k.entity == e {
			d.Keyring = k.path
		}
	}
	return d
}

// ChangeKeyring changes a keyring, and describes its keys. A change replaces the file, under the lock of a file beside it.
func ChangeKeyring(ctx context.Context, c sif.KeyringChange) (all []sif.Key, err error) {
	if c.Import != "" || c.Remove != "" {
		dirPerm := fs.FileMode(0o700)
		if c.Public {
			dirPerm = 0o755
		}
		if err := os.MkdirAll(filepath.Dir(c.Path), dirPerm); err != nil {
			return nil, err
		}
		l, err := lock.Create(ctx, c.Path+".lock", 0o600, lock.Exclusive) // others can open the directory of the admin's keyring
		if err != nil {
			return nil, err
		}
		defer l.Close()
	}
	ring, err := readKeyring(c.Path)
	if err != nil {
		return nil, err
	}
	changed, err := ring.applyChange(c)
	if err != nil {
		return nil, err
	}
	for _, k := range changed {
		all = append(all, *changed.describeKey(k.entity))
	}
	if c.Import == "" && c.Remove == "" {
		return all, nil
	}
	return all, changed.writeFile(c)
}

// applyChange returns the keys after a change.
func (r keyring) applyChange(c sif.KeyringChange) (keyring, error) {
	if c.Remove != "" {
		if !r.hasKey(c.Remove) {
			return nil, fmt.Errorf("%s has no key %s", c.Path, c.Remove)
		}
		r = r.selectKeys(func(f string) bool { return f != c.Remove })
	}
	if c.Import == "" {
		return r, nil
	}
	data, err := smallfile.Read(c.Import, maxKeyring)
	if err != nil {
		return nil, err
	}
	added, err := parseKeyring(c.Import, data)
	if err != nil {
		return nil, err
	}
	if len(added) == 0 {
		return nil, fmt.Errorf("%s has no OpenPGP key", c.Import)
	}
	// A key that is there may have been revoked or extended meanwhile.
	return r.selectKeys(func(f string) bool { return !added.hasKey(f) }).joinKeyring(added), nil
}

// writeFile writes the keys as Apptainer's file pgp-public has them.
func (r keyring) writeFile(c sif.KeyringChange) error {
	var b bytes.Buffer
	for _, k := range r {
		if err := k.entity.Serialize(&b); err != nil {
			return fmt.Errorf("write OpenPGP key %s: %w", k.formatFingerprint(), err)
		}
	}
	perm := fs.FileMode(0o600)
	if c.Public {
		perm = 0o644
	}
	return atomicfile.Write(c.Path, b.Bytes(), perm, atomicfile.Options{Sync: true})
}
