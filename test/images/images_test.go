// Package images runs real images with a GPU and looks at them from inside: do
// programs find the driver, does what packages do still work, and does a hostile
// image stay inside its root. The programs are the built ones, the containers real
// ones of runc and crun; the node is a simulated one with a stub driver.
package images

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-gpu/berth/test/rig"
)

var (
	node *rig.Node
	// The images' root file systems. They stay as they are: tests put an overlay on top.
	debianRoot, busyboxRoot string
	// ownLibrary is an old driver library as an image brings it along.
	ownLibrary string
)

const layouts = "../../.cache/image"

func TestMain(m *testing.M) { rig.Main(m, setUp) }

func setUp(r *rig.Rig) (err error) {
	if err := rig.MakeImages(); err != nil {
		return err
	}
	if out, err := exec.Command("./roots.sh").CombinedOutput(); err != nil {
		return fmt.Errorf("bring C libraries: %w: %s", err, out)
	}
	if debianRoot, err = unpack(r, "debian"); err != nil {
		return err
	}
	if busyboxRoot, err = unpack(r, "busybox"); err != nil {
		return err
	}
	opener, err := r.Compile("opener", "testdata/opener.c")
	if err != nil {
		return err
	}
	if ownLibrary, err = r.Compile("libcuda.so.440.1", "testdata/lib.c", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"); err != nil {
		return err
	}
	if err := errors.Join(os.Link(opener, filepath.Join(debianRoot, "usr/bin/opener")), packages(r)); err != nil {
		return err
	}
	node, err = r.Start("dgx-h100", "v1")
	return err
}

// unpack makes the root file system of a layout's one image, of one layer.
func unpack(r *rig.Rig, name string) (string, error) {
	var index ispec.Index
	var manifest ispec.Manifest
	dir := filepath.Join(layouts, name)
	blob := func(d digest.Digest) string { return filepath.Join(dir, "blobs", d.Algorithm().String(), d.Encoded()) }
	if err := decode(filepath.Join(dir, "index.json"), &index); err != nil {
		return "", err
	}
	if err := decode(blob(index.Manifests[0].Digest), &manifest); err != nil {
		return "", err
	}
	root := filepath.Join(r.Dir, name)
	if err := os.Mkdir(root, 0o755); err != nil {
		return "", err
	}
	out, err := exec.Command("tar", "-xzf", blob(manifest.Layers[0].Digest), "-C", root).CombinedOutput()
	if err != nil || len(manifest.Layers) != 1 {
		return "", fmt.Errorf("unpack %s, %d layers: %w: %s", name, len(manifest.Layers), err, out)
	}
	return root, nil
}

func decode(path string, v any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, v)
}

// packages makes two Debian packages in the root: one with a library, and one with
// an old driver. Both ask for ldconfig as packages with libraries do.
func packages(r *rig.Rig) error {
	plain, err := r.Compile("libplain.so.1", "testdata/lib.c", "-shared", "-fPIC", "-Wl,-soname,libplain.so.1")
	if err != nil {
		return err
	}
	for name, library := range map[string]string{"plain": plain, "libcuda": ownLibrary} {
		dir := filepath.Join(r.Dir, "package-"+name)
		libs := filepath.Join(dir, "usr/lib/x86_64-linux-gnu")
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, "DEBIAN"), 0o755), os.MkdirAll(libs, 0o755)); err != nil {
			return err
		}
		control := "Package: test-" + name + "\nVersion: 1\nArchitecture: all\nMaintainer: nobody <nobody@localhost>\nDescription: for a test\n"
		soname := name + ".so.1"
		if name == "plain" {
			soname = "libplain.so.1"
		}
		err := errors.Join(
			os.WriteFile(filepath.Join(dir, "DEBIAN/control"), []byte(control), 0o644),
			os.WriteFile(filepath.Join(dir, "DEBIAN/triggers"), []byte("activate-noawait ldconfig\n"), 0o644),
			os.Link(library, filepath.Join(libs, filepath.Base(library))),
		)
		if filepath.Base(library) != soname {
			err = errors.Join(err, os.Symlink(filepath.Base(library), filepath.Join(libs, soname)))
		}
		if err != nil {
			return err
		}
		out, err := exec.Command("dpkg-deb", "--build", "--root-owner-group", "-Znone", dir, filepath.Join(debianRoot, "test-"+name+".deb")).CombinedOutput()
		if err != nil {
			return fmt.Errorf("dpkg-deb: %w: %s", err, out)
		}
	}
	return nil
}

// image is a root file system of its own for one test.
type image struct {
	dir   string // in the node
	upper string // what differs from the image it was made of
}

// imageOf puts a layer over a root file system, and has change edit it; the path
// that it gets is the root's as seen from the test.
func imageOf(t *testing.T, root string, change func(root string)) image {
	t.Helper()
	dir, err := os.MkdirTemp(node.Dir, "image-") // a name that mount can be told
	rig.Must(t, err)
	i := image{dir: filepath.Join(dir, "root"), upper: filepath.Join(dir, "upper")}
	for _, name := range []string{"root", "upper", "work"} {
		rig.Must(t, os.Mkdir(filepath.Join(dir, name), 0o755))
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", root, i.upper, filepath.Join(dir, "work"))
	n := node
	n.Do(t, "mount", "-t", "overlay", "overlay", "-o", options, i.dir)
	t.Cleanup(func() { n.Do(t, "umount", "--lazy", i.dir) })
	if change != nil {
		change(node.Path(i.dir))
	}
	return i
}

// readOnly returns the image as a file system that can't be written.
func (i image) readOnly(t *testing.T) image {
	t.Helper()
	dir := t.TempDir()
	node.Do(t, "mount", "--bind", i.dir, dir)
	t.Cleanup(func() { node.Do(t, "umount", "--lazy", dir) })
	node.Do(t, "mount", "-o", "remount,bind,ro", dir)
	return image{dir: dir, upper: i.upper}
}

// write makes a file and the directories to it.
func write(t *testing.T, path, content string) {
	t.Helper()
	rig.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	rig.Must(t, os.WriteFile(path, []byte(content), 0o644))
}

func lines(text string) []string { return strings.Split(strings.TrimRight(text, "\n"), "\n") }
