package signature

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	"github.com/google/go-cmp/cmp"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sylabs/sif/v2/pkg/integrity"
	library "github.com/sylabs/sif/v2/pkg/sif"

	"github.com/berth-gpu/berth/launcher/sif"
)

// newKey makes an OpenPGP key, and a keyring with its public part.
func newKey(t testing.TB, name string, config packet.Config) (*openpgp.Entity, keyring) {
	t.Helper()
	config.Algorithm = packet.PubKeyAlgoEdDSA
	e, err := openpgp.NewEntity(name, "", name+"@example.org", &config)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := e.Serialize(&b); err != nil {
		t.Fatal(err)
	}
	ring, err := parseKeyring(name, b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return e, ring
}

// writeRing writes a keyring to a file.
func writeRing(t testing.TB, r keyring) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ring")
	if err := r.writeFile(sif.KeyringChange{Path: path}); err != nil {
		t.Fatal(err)
	}
	return path
}

// newFile writes data to a file and opens it.
func newFile(t testing.TB, data []byte) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.sif")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// makeSquashfs returns the superblock of a squashfs with zstd, and two pages of zeros. inodes tells one from another.
func makeSquashfs(inodes uint32) []byte {
	data := make([]byte, 8192)
	copy(data, "hsqs")
	for offset, value := range map[int]uint32{4: inodes, 12: 128 << 10, 20: 6 | 17<<16, 28: 4, 40: 8192} {
		binary.LittleEndian.PutUint32(data[offset:], value)
	}
	return data
}

func newObject(t testing.TB, kind library.DataType, data []byte, opts ...library.DescriptorInputOpt) library.DescriptorInput {
	t.Helper()
	in, err := library.NewDescriptorInput(kind, bytes.NewReader(data), opts...)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func newRoot(t testing.TB, opts ...library.DescriptorInputOpt) library.DescriptorInput {
	t.Helper()
	return newObject(t, library.DataPartition, makeSquashfs(1), append(opts, library.OptPartitionMetadata(library.FsSquash, library.PartPrimSys, "arm64"), library.OptObjectName("root"))...)
}

func newSignature(t testing.TB, data []byte) library.DescriptorInput {
	t.Helper()
	return newObject(t, library.DataSignature, data, library.OptSignatureMetadata(crypto.SHA256, make([]byte, 20)), library.OptNoGroup(), library.OptLinkedGroupID(1))
}

// writeFile returns the bytes of a SIF file.
func writeFile(t testing.TB, inputs ...library.DescriptorInput) []byte {
	t.Helper()
	var b library.Buffer
	if _, err := library.CreateContainer(&b, library.OptCreateWithDescriptors(inputs...), library.OptCreateWithDescriptorCapacity(80)); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// signFile returns the file with a signature.
func signFile(t testing.TB, data []byte, options ...integrity.SignerOpt) []byte {
	t.Helper()
	b := library.NewBuffer(slices.Clone(data))
	f, err := library.LoadContainer(b)
	if err != nil {
		t.Fatal(err)
	}
	s, err := integrity.NewSigner(f, options...)
	if err == nil {
		err = s.Sign()
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// makeUnsigned returns an image of a definition, the root file system and an overlay in one group, and an object in another group.
func makeUnsigned(t testing.TB) []byte {
	t.Helper()
	return writeFile(t,
		newObject(t, library.DataDeffile, []byte("bootstrap: other")), newRoot(t),
		newObject(t, library.DataPartition, bytes.Repeat([]byte("overlay "), 512), library.OptPartitionMetadata(library.FsExt3, library.PartOverlay, "arm64")),
		newObject(t, library.DataGeneric, []byte("other"), library.OptGroupID(2)),
		newObject(t, library.DataGeneric, []byte("beside"), library.OptGroupID(1)),
	)
}

// listPartitions returns what berth would mount of a file.
func listPartitions(t testing.TB, data []byte) []sif.Partition {
	t.Helper()
	image, err := sif.Read(newFile(t, data))
	if err != nil {
		t.Fatal(err)
	}
	return append([]sif.Partition{image.Root}, image.Overlays...)
}

// flipBit returns a copy in which one bit is changed, delta bytes from the beginning of text.
func flipBit(t testing.TB, data []byte, text string, delta int) []byte {
	t.Helper()
	at := bytes.Index(data, []byte(text))
	if at < 0 {
		t.Fatalf("there is no %q", text)
	}
	changed := slices.Clone(data)
	changed[at+delta] ^= 1
	return changed
}

// TestCheck: a file counts as signed only if an accepted key has signed header, root and overlays of what is run.
func TestCheck(t *testing.T) {
	ann, ring := newKey(t, "ann", packet.Config{})
	bob, bobs := newKey(t, "bob", packet.Config{})
	old, olds := newKey(t, "old", packet.Config{KeyLifetimeSecs: 1, Time: func() time.Time { return time.Now().Add(-time.Hour) }})
	signer, _ := newSigner(t)
	by, group := integrity.OptSignWithEntity, integrity.OptSignGroup
	plain := makeUnsigned(t)
	good := signFile(t, plain, by(ann), group(1))
	for _, tt := range []struct {
		name string
		data []byte
		keys keyring
		want string // part of the error, "" for none
	}{
		{"signed", good, ring, ""},
		{"one of two keys", signFile(t, good, by(bob), group(1)), ring, ""},
		{"two signatures, the first by another key", signFile(t, signFile(t, plain, by(bob), group(1)), by(ann), group(1)), ring, ""},
		{"all groups", signFile(t, plain, by(ann)), ring, ""},
		{"unsigned", plain, ring, "signature not found for object group 1"},
		{"no keys", good, nil, "unknown entity"},
		{"another key", signFile(t, plain, by(bob), group(1)), ring, "unknown entity"},
		{"a key that isn't accepted", signFile(t, plain, by(bob), group(1)), ring.joinKeyring(bobs), "unknown entity"},
		{"expired key", signFile(t, plain, by(old), group(1), integrity.OptSignWithTime(func() time.Time { return time.Now().Add(-time.Hour) })), olds, "key expired"},
		{"another group", signFile(t, plain, by(ann), group(2)), ring, "signature not found for object group 1"},
		{"another object", signFile(t, plain, by(ann), integrity.OptSignObjects(1)), ring, "not signed"},
		{"not the overlay", signFile(t, plain, by(ann), integrity.OptSignObjects(1, 2, 5)), ring, "not signed"},
		{"root changed", flipBit(t, good, "hsqs", 100), ring, "data object integrity compromised: 2"},
		{"overlay changed", flipBit(t, good, "overlay ", 7), ring, "data object integrity compromised: 3"},
		{"object beside them changed", flipBit(t, good, "beside", 0), ring, "data object integrity compromised: 5"},
		{"name of the root changed", flipBit(t, good, "root\x00", 0), ring, "descriptor integrity compromised: 2"},
		{"header changed", flipBit(t, good, "SIF_MAGIC", 20), ring, "header integrity compromised"},
		{"signature changed", flipBit(t, good, `"version":1`, 0), ring, "signature object 6 not valid"},
		{"another root", replaceRoot(t, good), ring, "data object integrity compromised: 2"},
		{"root without a group", writeFile(t, newRoot(t, library.OptNoGroup())), ring, "invalid group ID"},
		{"signed by a key of another kind", signFile(t, plain, integrity.OptSignWithSigner(signer), group(1)), ring, "key material not provided"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			accepted := []string{ring[0].formatFingerprint(), olds[0].formatFingerprint()}
			err := Check(t.Context(), newFile(t, tt.data), sif.Verification{Keyrings: []string{writeRing(t, tt.keys)}, Accepted: accepted, Covered: listPartitions(t, tt.data)})
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}

// replaceRoot returns a file whose descriptor of the root leads to other data of the same size.
func replaceRoot(t *testing.T, signed []byte) []byte {
	t.Helper()
	changed := append(slices.Clone(signed), makeSquashfs(7)...)
	was := binary.LittleEndian.AppendUint64(nil, uint64(bytes.Index(signed, []byte("hsqs"))))
	return bytes.Replace(changed, was, binary.LittleEndian.AppendUint64(nil, uint64(len(signed))), 1)
}

// TestCheckPlaces: a file whose descriptors have changed since it was read isn't accepted for what it was then.
func TestCheckPlaces(t *testing.T) {
	ann, ring := newKey(t, "ann", packet.Config{})
	good := signFile(t, makeUnsigned(t), integrity.OptSignWithEntity(ann), integrity.OptSignGroup(1))
	moved := replaceRoot(t, good)
	v := sif.Verification{Keyrings: []string{writeRing(t, ring)}, Covered: listPartitions(t, moved)}
	if err := Check(t.Context(), newFile(t, append(good, moved[len(good):]...)), v); err == nil {
		t.Error("accepted")
	}
	v.Covered = append(listPartitions(t, good), v.Covered[0])
	if err := Check(t.Context(), newFile(t, good), v); err == nil || err.Error() != "its signature is for another part of the file" {
		t.Errorf("a partition that isn't in the file: %v", err)
	}
}

// TestCheckOrder: a signature covers which of several overlays hides the others, whatever the order of the descriptors.
func TestCheckOrder(t *testing.T) {
	ann, ring := newKey(t, "ann", packet.Config{})
	overlay := func(text string) library.DescriptorInput {
		return newObject(t, library.DataPartition, []byte(text), library.OptPartitionMetadata(library.FsExt3, library.PartOverlay, "arm64"))
	}
	good := signFile(t, writeFile(t, newRoot(t), overlay("below"), overlay("above")), integrity.OptSignWithEntity(ann))
	want := listPartitions(t, good)
	const size, tableAt, second = 585, 96, 1 // of the library's descriptors, its header's offset of them, and the first overlay's index
	at := binary.LittleEndian.Uint64(good[tableAt:]) + second*size
	swapped := slices.Concat(good[:at], good[at+size:at+2*size], good[at:at+size], good[at+2*size:])
	got := listPartitions(t, swapped)
	if err := Check(t.Context(), newFile(t, swapped), sif.Verification{Keyrings: []string{writeRing(t, ring)}, Covered: got}); err != nil {
		t.Fatal(err) // another kind of file would show nothing
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("another order of overlays is accepted: %s", diff)
	}
}

// newSigner makes a key that isn't an OpenPGP key, and a file with its public part.
func newSigner(t *testing.T) (signature.Signer, string) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := signature.LoadED25519Signer(private)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return signer, newFile(t, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})).Name()
}

func TestVerify(t *testing.T) {
	ann, ring := newKey(t, "ann", packet.Config{})
	bob, _ := newKey(t, "bob", packet.Config{})
	path := writeRing(t, ring)
	signer, public := newSigner(t)
	by := integrity.OptSignWithEntity
	plain := makeUnsigned(t)
	good := signFile(t, plain, by(ann))
	for _, tt := range []struct {
		name    string
		data    []byte
		options sif.Verification
		want    []string // signer and objects, and changed ones
		err     string
	}{
		{"all", good, sif.Verification{}, []string{"ann 1 2 3 5", "ann 4"}, ""},
		{"one group", good, sif.Verification{Groups: []uint32{2}}, []string{"ann 4"}, ""},
		{"one object", good, sif.Verification{Objects: []uint32{2}}, []string{"ann 2"}, ""},
		{"no such group", good, sif.Verification{Groups: []uint32{9}}, nil, "group not found"},
		{"no such object", good, sif.Verification{Objects: []uint32{9}}, nil, "object not found"},
		{"a group that isn't signed", signFile(t, plain, by(ann), integrity.OptSignGroup(1)), sif.Verification{}, []string{"ann 1 2 3 5"}, "signature not found for object group 2"},
		{"unknown key", signFile(t, plain, by(bob)), sif.Verification{}, []string{""}, "signature object 6 not valid: openpgp: signature made by unknown entity"},
		{"changed", flipBit(t, good, "hsqs", 100), sif.Verification{}, []string{"ann 1, changed 2"}, "data object integrity compromised: 2"},
		{"key", signFile(t, plain, integrity.OptSignWithSigner(signer)), sif.Verification{PublicKey: public}, []string{" 1 2 3 5", " 4"}, ""},
		{"key for a signature of OpenPGP", good, sif.Verification{PublicKey: public}, nil, "key material not provided for PGP clear-sign signature"},
		{"legacy", good, sif.Verification{Legacy: true}, nil, "signature not found for object 2"},
		{"legacy of all", good, sif.Verification{Legacy: true, LegacyAll: true}, nil, "signature not found for object 1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.options.Keyrings = []string{path, "/no/such/file"}
			var got []string
			err := Verify(t.Context(), newFile(t, tt.data), tt.options, func(v sif.Verdict) bool {
				name := ""
				if v.Signer != nil {
					name, _, _ = strings.Cut(v.Signer.Name, " ")
				}
				for _, o := range v.Objects {
					name += fmt.Sprintf(" %d", o.ID)
				}
				if v.Changed != nil {
					name += fmt.Sprintf(", changed %d", v.Changed.ID)
				}
				got = append(got, name)
				return false
			})
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if text := fmt.Sprint(err); text != tt.err && (tt.err != "" || err != nil) {
				t.Errorf("%v, want %q", err, tt.err)
			}
		})
	}
}

// TestBounds: what a file asks for is bounded, and the end of a context ends a hash.
func TestBounds(t *testing.T) {
	ann, ring := newKey(t, "ann", packet.Config{})
	many := []library.DescriptorInput{newRoot(t)}
	for range maxSignatures + 1 {
		many = append(many, newSignature(t, []byte("x")))
	}
	v := sif.Verification{Keyrings: []string{writeRing(t, ring)}}
	for want, data := range map[string][]byte{
		"it has more than 64 signatures":                                          writeFile(t, many...),
		"its signature (object 2) has more than 1024 KiB":                         writeFile(t, newRoot(t), newSignature(t, make([]byte, maxSignature+1))),
		"its object 1 lies outside of the file":                                   writeFile(t, newRoot(t))[:60000],
		"signature format not recognized":                                         writeFile(t, newRoot(t), newSignature(t, []byte("x"))),
		"signature object 2 not valid: openpgp: signature made by unknown entity": writeFile(t, newRoot(t), newSignature(t, []byte("-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\nx\n-----BEGIN PGP SIGNATURE-----\n\n-----END PGP SIGNATURE-----"))),
	} {
		v.Covered = listPartitions(t, writeFile(t, newRoot(t))) // at the same place in all of them
		if err := Check(t.Context(), newFile(t, data), v); err == nil || err.Error() != want {
			t.Errorf("%v, want %q", err, want)
		}
	}
	good := signFile(t, makeUnsigned(t), integrity.OptSignWithEntity(ann))
	v.Covered = listPartitions(t, good)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Check(ctx, newFile(t, good), v); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of the context: %v", err)
	}
	pipe, end, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	defer end.Close()
	if err := Verify(t.Context(), pipe, v, nil); err == nil {
		t.Error("a pipe was read")
	}
}

func TestKeyring(t *testing.T) {
	ann, anns := newKey(t, "ann", packet.Config{})
	_, bobs := newKey(t, "bob", packet.Config{})
	both := anns.joinKeyring(bobs).joinKeyring(anns)
	if len(both) != 2 || both.describeKey(both[0].entity).Name != "ann <ann@example.org>" || len(both[0].formatFingerprint()) != 40 {
		t.Fatalf("both keys: %v", both)
	}
	data, err := os.ReadFile(writeRing(t, both))
	if err != nil {
		t.Fatal(err)
	}
	var text, secret bytes.Buffer
	w, err := armor.Encode(&text, openpgp.PublicKeyType, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Close(), ann.SerializePrivate(&secret, nil)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "keys", "pgp-public")
	// change returns the names of the keys after a change.
	change := func(c sif.KeyringChange) (names string, err error) {
		c.Path = path
		all, err := ChangeKeyring(t.Context(), c)
		for _, k := range all {
			name, _, _ := strings.Cut(k.Name, " ")
			names += name + " "
		}
		return names, err
	}
	for _, tt := range []struct {
		name   string
		change sif.KeyringChange
		want   string
		fails  string
	}{
		{"nothing yet", sif.KeyringChange{}, "", ""},
		{"binary", sif.KeyringChange{Import: newFile(t, data).Name()}, "ann bob ", ""},
		{"again, with armor", sif.KeyringChange{Import: newFile(t, text.Bytes()).Name()}, "ann bob ", ""},
		{"remove", sif.KeyringChange{Remove: anns[0].formatFingerprint()}, "bob ", ""},
		{"remove again", sif.KeyringChange{Remove: anns[0].formatFingerprint()}, "", "has no key " + anns[0].formatFingerprint()},
		{"import one", sif.KeyringChange{Import: writeRing(t, anns)}, "bob ann ", ""},
		{"a secret key", sif.KeyringChange{Import: newFile(t, secret.Bytes()).Name()}, "", "has a secret key"},
		{"no key", sif.KeyringChange{Import: newFile(t, []byte("text")).Name()}, "", "openpgp: "},
		{"an empty file", sif.KeyringChange{Import: newFile(t, nil).Name()}, "", "has no OpenPGP key"},
		{"cut off", sif.KeyringChange{Import: newFile(t, data[:20]).Name()}, "", "EOF"},
		{"no file", sif.KeyringChange{Import: "/no/such/file"}, "", "no such file"},
		{"unchanged", sif.KeyringChange{}, "bob ann ", ""},
	} {
		got, err := change(tt.change)
		if got != tt.want || (err == nil) != (tt.fails == "") || err != nil && !strings.Contains(err.Error(), tt.fails) {
			t.Errorf("%s: %q, %v; want %q, %q", tt.name, got, err, tt.want, tt.fails)
		}
	}
}

// FuzzVerify: files and keyrings of strangers are read without a panic, and what is accepted is what was signed.
func FuzzVerify(f *testing.F) {
	ann, ring := newKey(f, "ann", packet.Config{})
	plain := makeUnsigned(f)
	good := signFile(f, plain, integrity.OptSignWithEntity(ann), integrity.OptSignGroup(1))
	data, err := os.ReadFile(writeRing(f, ring))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good, data)
	f.Add(plain, []byte("-----BEGIN PGP PUBLIC KEY BLOCK-----\n"))
	signed := map[string]bool{}
	for _, p := range listPartitions(f, good) {
		signed[string(good[p.Offset:p.Offset+p.Size])] = true
	}
	f.Fuzz(func(t *testing.T, data, keysOfStranger []byte) {
		r := bytes.NewReader(data)
		ignore := func(sif.Verdict) bool { return true }
		if strangers, err := parseKeyring("", keysOfStranger); err == nil {
			_ = verifySignatures(t.Context(), r, r.Size(), sif.Verification{}, keys{ring: strangers}, ignore)
			_ = verifySignatures(t.Context(), r, r.Size(), sif.Verification{Legacy: true}, keys{ring: strangers}, ignore)
		}
		_ = verifySignatures(t.Context(), r, r.Size(), sif.Verification{Groups: []uint32{1}}, keys{ring: ring}, func(v sif.Verdict) bool {
			for _, o := range v.Objects {
				if strings.HasPrefix(o.Type, "FS") && v.Error == "" && !signed[string(data[o.Offset:o.Offset+o.Size])] {
					t.Errorf("bytes %d to %d weren't signed", o.Offset, o.Offset+o.Size)
				}
			}
			return true
		})
	})
}
