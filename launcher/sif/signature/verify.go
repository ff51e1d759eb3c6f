// Package signature verifies the signatures of SIF files, as "apptainer verify" does, and reads and changes keyrings of OpenPGP keys. It asks no key
// servers. The library that verifies links much that makes the start of a program slow: only berth-containerd links this package, and package sif has
// the types that berth sends to it.
//
// Files, signatures and keys are written by strangers. Sizes and numbers are checked before the library reads them. Each valid signature costs a hash
// of everything that it covers.
package signature

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sylabs/sif/v2/pkg/integrity"
	library "github.com/sylabs/sif/v2/pkg/sif"

	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/launcher/sif"
)

// Bounds of signatures. One has two digests for each object that it covers.
const (
	maxSignatures = 64
	maxSignature  = 1 << 20 // bytes
)

// Verify verifies the signatures of a file, and calls report for each that it finds. It returns the first error, also one in a verdict, unless
// report returns true for that. The end of ctx ends it. Errors are phrases about the file, or the library's.
func Verify(ctx context.Context, f *os.File, v sif.Verification, report func(sif.Verdict) (ignore bool)) error {
	keys, err := readKeys(v)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return errors.New("it is no regular file")
	}
	return verifySignatures(ctx, f, info.Size(), v, keys, report)
}

// keys are the keys of a verification, of one of the two kinds.
type keys struct {
	ring   keyring
	public signature.Verifier
}

func readKeys(v sif.Verification) (k keys, err error) {
	if v.PublicKey != "" {
		data, err := smallfile.Read(v.PublicKey, maxKeyring)
		if err != nil {
			return k, err
		}
		k.public, err = parsePublicKey(data)
		if err != nil {
			return k, fmt.Errorf("%s: %w", v.PublicKey, err)
		}
		return k, nil
	}
	for _, path := range v.Keyrings {
		ring, err := readKeyring(path)
		if err != nil {
			return k, err
		}
		k.ring = k.ring.joinKeyring(ring)
	}
	if len(v.Accepted) > 0 {
		k.ring = k.ring.selectKeys(func(fingerprint string) bool { return slices.Contains(v.Accepted, fingerprint) })
	}
	return k, nil
}

// parsePublicKey parses a public key of RSA, ECDSA or Ed25519.
func parsePublicKey(pem []byte) (signature.Verifier, error) {
	key, err := cryptoutils.UnmarshalPEMToPublicKey(pem)
	if err != nil {
		return nil, err
	}
	return signature.LoadVerifier(key, crypto.SHA256)
}

// verifySignatures is Verify of a file with size bytes.
func verifySignatures(ctx context.Context, r io.ReaderAt, size int64, v sif.Verification, k keys, report func(sif.Verdict) bool) error {
	file, objects, err := sif.Load(interruptible{r, ctx}, size)
	if err != nil {
		return err
	}
	if err := checkSizes(file); err != nil {
		return err
	}
	options, err := listOptions(v, k, file)
	if err != nil {
		return err
	}
	options = append(options, integrity.OptVerifyWithContext(ctx), integrity.OptVerifyCallback(func(r integrity.VerifyResult) bool {
		return report(describeResult(r, k, objects))
	}))
	verifier, err := integrity.NewVerifier(file, options...)
	if err == nil {
		err = verifier.Verify()
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if inner := errors.Unwrap(err); inner != nil {
		return inner // without the name of the library
	}
	return err
}

// listOptions returns the library's options.
func listOptions(v sif.Verification, k keys, file *library.FileImage) (all []integrity.VerifierOpt, err error) {
	if k.public != nil {
		all = append(all, integrity.OptVerifyWithVerifier(k.public))
	} else {
		all = append(all, integrity.OptVerifyWithKeyRing(k.ring.listEntities()))
	}
	for _, id := range v.Groups {
		all = append(all, integrity.OptVerifyGroup(id))
	}
	for _, id := range v.Objects {
		all = append(all, integrity.OptVerifyObject(id))
	}
	switch {
	case v.Legacy && v.LegacyAll:
		all = append(all, integrity.OptVerifyLegacyAll())
	case v.Legacy:
		all = append(all, integrity.OptVerifyLegacy())
		if len(v.Groups)+len(v.Objects) == 0 {
			root, err := file.GetDescriptor(library.WithPartitionType(library.PartPrimSys))
			if err != nil {
				return nil, err
			}
			all = append(all, integrity.OptVerifyObject(root.ID()))
		}
	}
	return all, nil
}

// checkSizes returns an error for signatures that the library, which reads each into memory, must not read.
func checkSizes(file *library.FileImage) (err error) {
	count := 0
	file.WithDescriptors(func(d library.Descriptor) bool {
		if d.DataType() != library.DataSignature {
			return false
		}
		count++
		switch {
		case count > maxSignatures:
			err = fmt.Errorf("it has more than %d signatures", maxSignatures)
		case d.Size() > maxSignature:
			err = fmt.Errorf("its signature (object %d) has more than %d KiB", d.ID(), maxSignature>>10)
		}
		return err != nil
	})
	return err
}

func describeResult(r integrity.VerifyResult, k keys, objects []sif.Object) (v sif.Verdict) {
	find := func(id uint32) *sif.Object {
		i := slices.IndexFunc(objects, func(o sif.Object) bool { return o.ID == id })
		return &objects[i] // the library has the same objects
	}
	if e := r.Entity(); e != nil {
		v.Signer = k.ring.describeKey(e)
	}
	for _, d := range r.Verified() {
		v.Objects = append(v.Objects, *find(d.ID()))
	}
	var changed *integrity.ObjectIntegrityError
	if errors.As(r.Error(), &changed) && changed.ID != 0 {
		v.Changed = find(changed.ID)
	}
	if r.Error() != nil {
		v.Error = r.Error().Error()
	}
	return v
}

// Check returns an error unless one valid signature covers the header of a file, the partitions in v.Covered, of which the first is the root file
// system, and all other objects of its group. The places of the partitions count, which signatures don't cover: the file may have changed since it was
// read. Signatures of the older format, and other groups, don't count.
func Check(ctx context.Context, f *os.File, v sif.Verification) error {
	image, err := sif.Read(f)
	if err != nil {
		return err
	}
	v.Groups = []uint32{findGroup(image, v.Covered[0])}
	signed, why := false, ""
	err = Verify(ctx, f, v, func(one sif.Verdict) bool {
		if one.Error == "" && coversAll(one.Objects, v.Covered) {
			signed = true
		} else {
			why = one.Error
		}
		return true // another signature may be valid
	})
	switch {
	case signed:
		return nil
	case err == nil && why != "":
		err = errors.New(why)
	case err == nil:
		err = errors.New("its signature is for another part of the file")
	}
	return err
}

// findGroup returns the group of a partition, 0 for none.
func findGroup(image sif.Image, p sif.Partition) uint32 {
	for _, o := range image.Objects {
		if o.Offset == p.Offset && o.Size == p.Size {
			return o.Group
		}
	}
	return 0
}

func coversAll(objects []sif.Object, partitions []sif.Partition) bool {
	for _, p := range partitions {
		if !slices.ContainsFunc(objects, func(o sif.Object) bool { return o.Offset == p.Offset && o.Size == p.Size }) {
			return false
		}
	}
	return true
}

// interruptible is a file that can't be read any more after the end of a context.
type interruptible struct {
	io.ReaderAt
	ctx context.Context
}

func (r interruptible) ReadAt(p []byte, offset int64) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.ReaderAt.ReadAt(p, offset)
}
