package broker

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	"github.com/sylabs/sif/v2/pkg/integrity"
	"github.com/sylabs/sif/v2/pkg/sif"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/test/rig"
)

// newKey makes an OpenPGP key.
func newKey(t *testing.T, name string) *openpgp.Entity {
	t.Helper()
	key, err := openpgp.NewEntity(name, "", name+"@example.org", &packet.Config{Algorithm: packet.PubKeyAlgoEdDSA})
	rig.Must(t, err)
	return key
}

// changeSIF returns the path of a copy of an image that all users may read, which was changed.
func changeSIF(t *testing.T, image string, change func(*sif.FileImage) error) string {
	t.Helper()
	path := copyImage(t, image)
	f, err := sif.LoadContainerFromPath(path)
	rig.Must(t, err)
	rig.Must(t, change(f))
	rig.Must(t, f.UnloadContainer())
	return path
}

func copyImage(t *testing.T, image string) string {
	t.Helper()
	data, err := os.ReadFile(image)
	rig.Must(t, err)
	f, err := os.CreateTemp(filepath.Dir(image), "*.sif")
	rig.Must(t, err)
	_, err = f.Write(data)
	rig.Must(t, err)
	rig.Must(t, f.Chmod(0o644))
	rig.Must(t, f.Close())
	return f.Name()
}

// TestSIFSigned: with apptainer.signed_by, only SIF files that one of these keys has signed are run, as they were signed, and only if no other user can
// change them.
func TestSIFSigned(t *testing.T) {
	h, plain := sifHome(t, nil)
	ann, bob := newKey(t, "ann"), newKey(t, "bob")
	sign := func(image string, key *openpgp.Entity, options ...integrity.SignerOpt) string {
		t.Helper()
		return changeSIF(t, image, func(f *sif.FileImage) error {
			s, err := integrity.NewSigner(f, append(options, integrity.OptSignWithEntity(key))...)
			if err != nil {
				return err
			}
			return s.Sign()
		})
	}
	// add adds an object to a group.
	add := func(image string, group uint32) string {
		t.Helper()
		return changeSIF(t, image, func(f *sif.FileImage) error {
			in, err := sif.NewDescriptorInput(sif.DataGeneric, strings.NewReader("added"), sif.OptGroupID(group))
			if err != nil {
				return err
			}
			return f.AddObject(in)
		})
	}
	// flip changes a bit, delta bytes from the beginning of text.
	flip := func(image, text string, delta int) string {
		t.Helper()
		path := copyImage(t, image)
		data, err := os.ReadFile(path)
		rig.Must(t, err)
		data[bytes.Index(data, []byte(text))+delta] ^= 1
		rig.Must(t, os.WriteFile(path, data, 0o644))
		return path
	}
	owned := func(image string, uid int, mode os.FileMode) string {
		t.Helper()
		path := copyImage(t, image)
		rig.Must(t, os.Chown(path, uid, uid))
		rig.Must(t, os.Chmod(path, mode))
		return path
	}
	const carol = 4801
	keys := filepath.Join(filepath.Dir(plain), "keys")
	var ring bytes.Buffer
	rig.Must(t, ann.Serialize(&ring))
	rig.Must(t, bob.Serialize(&ring))
	rig.Must(t, os.WriteFile(keys, ring.Bytes(), 0o644))
	config := filepath.Join(filepath.Dir(plain), "config.toml")
	text := fmt.Sprintf("[apptainer]\nsigned_by = [\"%x\"]\nkeyring = %q\n", ann.PrimaryKey.Fingerprint, keys)
	rig.Must(t, os.WriteFile(config, []byte(text), 0o644))
	good := sign(plain, ann)
	first := integrity.OptSignGroup(1)
	for _, tt := range []struct{ name, image, want string }{
		{"signed", good, ""},
		{"its user's", owned(good, alice, 0o600), ""},
		{"signed, and another key's signature", sign(good, bob), ""},
		{"another group that isn't signed", add(good, 2), ""},
		{"unsigned", plain, "signature not found for object group 1"},
		{"another key", sign(plain, bob), "signature object 2 not valid: openpgp: signature made by unknown entity"},
		{"tampered", flip(good, "hsqs", 5000), "data object integrity compromised: 1"},
		{"another header", flip(good, "run-singularity", 0), "header integrity compromised"},
		{"another id", flip(good, "SIF_MAGIC", 20), "header integrity compromised"},
		{"the signature of another object", sign(add(plain, 1), ann, integrity.OptSignObjects(2)), "object 1: object not signed"},
		{"the signature of the other group", sign(add(plain, 2), ann, integrity.OptSignGroup(2)), "signature not found for object group 1"},
		{"an object that was added", add(sign(plain, ann, first), 1), "object 3: object not signed"},
		{"another user's", owned(good, carol, 0o644), "its owner, user 4801, could change it after its signature was verified: cp makes a copy of your own"},
		{"a group's", owned(good, alice, 0o664), "others could change it after its signature was verified: chmod go-w"},
		{"writable by all users", owned(good, 0, 0o646), "others could change it after its signature was verified: chmod go-w"},
	} {
		want := rig.Said{Out: "ran\n"}
		if tt.want != "" {
			want = rig.Said{Code: 255, Err: "berth: " + tt.image + ": images have to be signed here: " + tt.want + "\n"}
		}
		for _, words := range [][]string{{"exec", tt.image, "echo", "ran"}, {"exec", "--fakeroot", tt.image, "echo", "ran"}} {
			h.wantSaid(tt.name, h.run(alice, h.words(append([]string{"--config", config, "apptainer"}, words...)...)...), want)
		}
	}
	for name, image := range map[string]string{"a file of root's": good, "a file of a user's": owned(good, alice, 0o644)} {
		got := h.Run(t, h.Command(h.Berth, "--config", config, "apptainer", "exec", image, "echo", "ran"))
		if (got.Code == 0) != (image == good) {
			t.Errorf("root, %s: %+v", name, got)
		}
	}
	h.makeImage(filepath.Join(h.dir, "image"))
	h.wantSaid("a directory", h.run(alice, h.words("--config", config, "apptainer", "exec", h.dir+"/image", "echo", "ran")...), rig.Said{Out: "ran\n"})
	for what, text := range map[string]string{
		"images have to be signed here: signature object 2 not valid: openpgp: signature made by unknown entity":                         strings.Replace(text, keys, "/no/such/file", 1),
		`apptainer.signed_by in ` + config + `: "0123456789abcdef" is no fingerprint of an OpenPGP key, which has 40 hexadecimal digits`: "[apptainer]\nsigned_by = [\"0123456789abcdef\"]\n",
	} {
		rig.Must(t, os.WriteFile(config, []byte(text), 0o644))
		if got := h.run(alice, h.words("--config", config, "apptainer", "exec", good, "true")...); got.Code != 255 || !strings.Contains(got.Err, what) {
			t.Errorf("%+v, want %q", got, what)
		}
	}
}

// TestSIFSignedSwapped: a link to a signed file that its owner leads to another file, when the first one has been opened, gives a command no other image,
// also where the image is unpacked.
func TestSIFSignedSwapped(t *testing.T) {
	const carol = 4801
	h, plain := sifHome(t, nil)
	ann := newKey(t, "ann")
	good := changeSIF(t, plain, func(f *sif.FileImage) error {
		s, err := integrity.NewSigner(f, integrity.OptSignWithEntity(ann))
		if err != nil {
			return err
		}
		return s.Sign()
	})
	evil := packUnusual(t, "echo >evil")
	dir := filepath.Dir(plain)
	rig.Must(t, os.Chown(evil, carol, carol))
	var ring bytes.Buffer
	rig.Must(t, ann.Serialize(&ring))
	keys, config, link, other := filepath.Join(dir, "keys"), filepath.Join(dir, "config.toml"), filepath.Join(dir, "link.sif"), filepath.Join(dir, "other.sif")
	rig.Must(t, os.WriteFile(keys, ring.Bytes(), 0o644))
	rig.Must(t, os.WriteFile(config, fmt.Appendf(nil, "[apptainer]\nsigned_by = [\"%x\"]\nkeyring = %q\n", ann.PrimaryKey.Fingerprint, keys), 0o644))
	const command = "test ! -e /evil && echo signed"
	for _, words := range [][]string{{}, {"--unsquash"}} {
		rig.Must(t, os.RemoveAll(link))
		rig.Must(t, os.Symlink(good, link))
		rig.Must(t, os.Symlink(evil, other))
		opened, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		rig.Must(t, err)
		_, err = unix.InotifyAddWatch(opened, good, unix.IN_OPEN)
		rig.Must(t, err)
		swapped := make(chan error, 1)
		go func() {
			_, err := unix.Read(opened, make([]byte, unix.SizeofInotifyEvent))
			swapped <- cmp.Or(err, os.Rename(other, link))
		}()
		words = append(append([]string{"--config", config, "apptainer", "exec"}, words...), link, "sh", "-c", command)
		h.wantSaid("a swapped link", withoutUnpacking(h.run(alice, h.words(words...)...)), rig.Said{Out: "signed\n"})
		rig.Must(t, <-swapped)
		rig.Must(t, unix.Close(opened))
	}
}

// serveSquashfs mounts a squashfs at a directory of the user's, by a FUSE server of the user's that reports root as the owner of all files.
func (h home) serveSquashfs(uid int, system, at string) {
	h.t.Helper()
	h.Do(h.t, "sh", "-ec", `for name in passwd fuse.conf; do cp /etc/$name "$0.$name"; chmod 644 "$0.$name"; done
		echo server:x:$1:$1::/:/bin/sh >>"$0.passwd"; echo user_allow_other >>"$0.fuse.conf"
		for name in passwd fuse.conf; do mount --bind "$0.$name" /etc/$name; done`, system, strconv.Itoa(uid))
	h.t.Cleanup(func() { h.Do(h.t, "umount", "--lazy", "/etc/passwd", "/etc/fuse.conf", at) })
	if got := h.run(uid, "squashfuse_ll", "-o", "allow_other", system, at); got.Code != 0 {
		h.t.Fatalf("%+v", got)
	}
}

// TestSIFSignedServed: a file of a file system that another user serves isn't root's because that user says so.
func TestSIFSignedServed(t *testing.T) {
	const carol = 4801
	h, plain := sifHome(t, nil)
	ann := newKey(t, "ann")
	good := changeSIF(t, plain, func(f *sif.FileImage) error {
		s, err := integrity.NewSigner(f, integrity.OptSignWithEntity(ann))
		if err != nil {
			return err
		}
		return s.Sign()
	})
	dir := filepath.Dir(plain)
	var ring bytes.Buffer
	rig.Must(t, ann.Serialize(&ring))
	keys, config, files, system, at := filepath.Join(dir, "keys"), filepath.Join(dir, "config.toml"), filepath.Join(dir, "files"), filepath.Join(dir, "system"), filepath.Join(dir, "at")
	rig.Must(t, os.WriteFile(keys, ring.Bytes(), 0o644))
	rig.Must(t, os.WriteFile(config, fmt.Appendf(nil, "[apptainer]\nsigned_by = [\"%x\"]\nkeyring = %q\n", ann.PrimaryKey.Fingerprint, keys), 0o644))
	h.Do(t, "sh", "-ec", `mkdir "$0" "$1"; cp "$2" "$0/image.sif"; chown 4801:4801 "$1"; mksquashfs "$0" "$3" -all-root -noappend -quiet -no-progress`, files, at, good, system)
	h.serveSquashfs(carol, system, at)
	image := filepath.Join(at, "image.sif")
	h.wantSaid("served by another user", h.run(alice, h.words("--config", config, "apptainer", "exec", image, "echo", "ran")...), rig.Said{
		Code: 255, Err: "berth: " + image + ": images have to be signed here: user 4801 serves its file system and could change it after its signature was verified: cp makes a copy of your own\n",
	})
	h.Do(t, "umount", "--lazy", at)
	h.Do(t, "squashfuse_ll", "-o", "allow_other", system, at) // of root's
	h.wantSaid("served by root", h.run(alice, h.words("--config", config, "apptainer", "exec", image, "echo", "ran")...), rig.Said{Out: "ran\n"})
}
