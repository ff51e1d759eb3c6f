package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
	"github.com/berth-gpu/berth/test/image/oci"
	"github.com/berth-gpu/berth/test/images/fake"
)

// dockerSave is what docker save writes of one image, as entries of an archive.
func dockerSave(name string, tags []string, layer string) (entry map[string]any, files []oci.File) {
	data, err := io.ReadAll(oci.Tar(oci.File{Name: "which", Body: layer}))
	if err != nil {
		panic(err) // it is in memory
	}
	config := fmt.Sprintf(`{"os":"linux","architecture":%q,"config":{"Env":["WHICH=%s"]},"rootfs":{"type":"layers","diff_ids":[%q]}}`, runtime.GOARCH, layer, fake.Digest(data))
	entry = map[string]any{"Config": name + ".json", "RepoTags": tags, "Layers": []string{name + "/layer.tar"}}
	return entry, []oci.File{{Name: name + ".json", Body: config}, {Name: name + "/"}, {Name: name + "/layer.tar", Body: string(data)}}
}

func manifestJSON(entries ...map[string]any) oci.File {
	data, err := json.Marshal(entries)
	if err != nil {
		panic(err) // maps of strings
	}
	return oci.File{Name: "manifest.json", Body: string(data)}
}

func writeArchive(t *testing.T, name string, files ...oci.File) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	data, err := io.ReadAll(oci.Tar(files...))
	testutil.Must(t, err)
	testutil.Must(t, os.WriteFile(path, data, 0o600))
	return path
}

// compressEachWay are the ways to hand an archive on.
func compressEachWay(t *testing.T, path string) map[string]string {
	t.Helper()
	data, err := os.ReadFile(path)
	testutil.Must(t, err)
	var z, s bytes.Buffer
	g := gzip.NewWriter(&z)
	_, err = g.Write(data)
	testutil.Must(t, err)
	testutil.Must(t, g.Close())
	e, err := zstd.NewWriter(&s)
	testutil.Must(t, err)
	_, err = e.Write(data)
	testutil.Must(t, err)
	testutil.Must(t, e.Close())
	testutil.Must(t, os.WriteFile(path+".gz", z.Bytes(), 0o600))
	testutil.Must(t, os.WriteFile(path+".zst", s.Bytes(), 0o600))
	return map[string]string{"plain": path, "gzip": path + ".gz", "zstd": path + ".zst"}
}

func TestDockerArchive(t *testing.T) {
	testutil.NeedRoot(t)
	a, filesA := dockerSave("aaa", []string{"app:1", "registry.x:5000/team/app:one"}, "A")
	b, filesB := dockerSave("bbb", []string{"docker.io/library/other:2"}, "B")
	b["Layers"] = []string{"ccc/layer.tar"}
	link := oci.File{Name: "ccc/layer.tar", Type: tar.TypeSymlink, Link: "../bbb/layer.tar"}
	archive := writeArchive(t, "two.tar", append(append(append(filesA, link), filesB...), manifestJSON(a, b))...)
	for how, path := range compressEachWay(t, archive) {
		for _, tt := range []struct{ tag, which, fails string }{
			{":app:1", "A", ""},
			{":1", "A", ""},
			{":registry.x:5000/team/app:one", "A", ""},
			{":docker.io/library/app:1", "A", ""},
			{":other:2", "B", ""},
			{":2", "B", ""},
			{"", "", "several images and no tag to choose by; there are: app:1, docker.io/library/other:2, registry.x:5000/team/app:one"},
			{":app:2", "", `no image is tagged "app:2"; there are: app:1`},
		} {
			t.Run(how+tt.tag, func(t *testing.T) {
				s := Store{Dir: t.TempDir()}
				img, err := s.Open(t.Context(), "docker-archive:"+path+tt.tag, Search{})
				if tt.fails != "" {
					if err == nil || !strings.Contains(err.Error(), tt.fails) {
						t.Errorf("error %v, want %q", err, tt.fails)
					}
					return
				}
				testutil.Must(t, err)
				defer img.Close()
				dirs, err := s.Unpack(t.Context(), img, nil)
				testutil.Must(t, err)
				data, err := os.ReadFile(filepath.Join(dirs[0], "which"))
				if err != nil || string(data) != tt.which || !slices.Equal(img.Config.Env, []string{"WHICH=" + tt.which}) {
					t.Errorf("%q, %v, %v", data, img.Config.Env, err)
				}
			})
		}
	}
}

func TestOCIArchive(t *testing.T) {
	testutil.NeedRoot(t)
	layout := write(t, sampleImage("a", "A"), sampleImage("b", "B"))
	path := filepath.Join(t.TempDir(), "layout.tar")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	testutil.Must(t, err)
	w := tar.NewWriter(f)
	testutil.Must(t, w.AddFS(os.DirFS(layout)))
	testutil.Must(t, w.Close())
	testutil.Must(t, f.Close())
	for how, path := range compressEachWay(t, path) {
		s := Store{Dir: t.TempDir()}
		img, err := s.Open(t.Context(), "oci-archive:"+path+":b", Search{})
		testutil.Must(t, err)
		dirs, err := s.Unpack(t.Context(), img, nil)
		testutil.Must(t, err)
		if data, err := os.ReadFile(filepath.Join(dirs[0], "which")); err != nil || string(data) != "B" {
			t.Errorf("%s: %q, %v", how, data, err)
		}
		img.Close()
		if names, err := os.ReadDir(s.Dir); err != nil || len(names) != 1 {
			t.Errorf("%s: left in the store: %v, %v", how, names, err)
		}
		if _, err := s.Open(t.Context(), "oci-archive:"+path, Search{}); err == nil || !strings.Contains(err.Error(), "there are: a, b") {
			t.Errorf("%s: error %v", how, err)
		}
	}
}

// An archive is known by what is in it, and one that is said to be of the other kind isn't
// taken for broken.
func TestArchiveKinds(t *testing.T) {
	entry, files := dockerSave("aaa", []string{"app:1"}, "A")
	docker := writeArchive(t, "docker.tar", append(files, manifestJSON(entry))...)
	layout := writeArchive(t, "oci.tar", oci.File{Name: layoutFile, Body: `{"imageLayoutVersion":"1.0.0"}`}, oci.File{Name: indexFile, Body: `{"schemaVersion":2,"manifests":[]}`})
	other := writeArchive(t, "other.tar", files...)
	text := filepath.Join(t.TempDir(), "text")
	testutil.Must(t, os.WriteFile(text, []byte("text"), 0o600))
	dir := t.TempDir()
	testutil.Must(t, os.WriteFile(filepath.Join(dir, layoutFile), nil, 0o600))
	for _, tt := range []struct{ ref, says string }{
		{docker, ""},
		{docker + ":app:1", ""},
		{layout, "open image " + layout + ": the index lists no image"},
		{other, other + " is no image: an archive without manifest.json and oci-layout"},
		{text, text + " is no image: neither a directory nor an archive of one: read archive: unexpected EOF"},
		{"docker-archive:" + layout, "open image docker-archive:" + layout + ": it is an OCI layout: oci-archive:" + layout},
		{"oci-archive:" + docker + ":app:1", "open image oci-archive:" + docker + ":app:1: it is an archive of docker save: docker-archive:" + docker + ":app:1"},
		{"dir:" + dir, "dir:" + dir + " is no image of that kind: it is an OCI layout: oci:" + dir},
		{"docker-daemon:app:1", "image docker-daemon:app:1: docker's images are not read here; docker save -o FILE app:1 writes one that berth run takes"},
		{"containers-storage:app", "image containers-storage:app: podman's images are not read here; podman save -o FILE app writes one that berth run takes"},
		{"app.sif", "image app.sif: berth run starts no SIF files, but berth apptainer run app.sif does"},
		{"library://app", "image library://app: berth apptainer takes SIF files; docker://NAME or NAME is an image of layers"},
	} {
		img, err := Store{Dir: t.TempDir()}.Open(t.Context(), tt.ref, Search{Pull: Never})
		if text := fmt.Sprint(err); err != nil && text != tt.says || err == nil && tt.says != "" {
			t.Errorf("%s: %s, want %s", tt.ref, text, tt.says)
		}
		if err == nil {
			img.Close()
		}
	}
	for ref, says := range map[string]string{"oci:./x": "nothing to pull", "docker-archive:x.tar": "nothing to pull", "docker-daemon:x": "docker save", "app.sif": "writes no SIF file", "oras://x/app": "berth apptainer takes SIF files", "docker://x/app.sif": "", "x:1": "", "registry.x:5000/dir": ""} {
		if err := CheckPullable(ref); says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("pulling %s: %v, want %q", ref, err, says)
		}
	}
}

// Archives that lie lead nowhere outside of themselves.
func TestArchiveHostile(t *testing.T) {
	entry, files := dockerSave("aaa", nil, "A")
	change := func(key string, value any) oci.File {
		e := map[string]any{"Config": entry["Config"], "Layers": entry["Layers"]}
		e[key] = value
		return manifestJSON(e)
	}
	var longNames []oci.File
	for i := range 20 {
		longNames = append(longNames, oci.File{Name: fmt.Sprint(i, strings.Repeat("n", 1<<20-100))})
	}
	link := func(name, to string) oci.File { return oci.File{Name: name, Type: tar.TypeSymlink, Link: to} }
	for _, tt := range []struct {
		name  string
		files []oci.File
		says  string
	}{
		{"no manifest", files, `the archive has no file "manifest.json"`},
		{"not JSON", append(files, oci.File{Name: "manifest.json", Body: "{"}), "read manifest.json"},
		{"no image", append(files, manifestJSON()), "lists no image"},
		{"configuration of the host", append(files, change("Config", "/etc/hostname")), `no file "/etc/hostname"`},
		{"configuration above", append(files, change("Config", "../../../etc/hostname")), "no file"},
		{"layer of the host", append(files, change("Layers", []string{"/etc/hostname"})), "no file"},
		{"link out", append(files, link("l", "/etc/hostname"), change("Layers", []string{"l"})), "no file"},
		{"links in a circle", append(files, link("l", "m"), link("m", "l"), change("Layers", []string{"l"})), "leads nowhere"},
		{"link to a directory", append(files, link("l", "aaa"), change("Layers", []string{"l"})), "no file"},
		{"a device", append(files, oci.File{Name: "l", Type: tar.TypeChar, Major: 1, Minor: 5}, change("Layers", []string{"l"})), "no file"},
		{"more layers than contents", append(files, change("Layers", []string{"aaa/layer.tar", "aaa/layer.tar"})), "manifest has 2 layers, configuration has 1"},
		{"long names", longNames, "the names of its files are longer than 16 MB"},
		{"no layers", append(files, change("Layers", []string{})), "manifest has 0 layers"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Store{Dir: t.TempDir()}.Open(t.Context(), "docker-archive:"+writeArchive(t, "x.tar", tt.files...), Search{})
			if err == nil || !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want %q", err, tt.says)
			}
		})
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	testutil.Must(t, unix.Mkfifo(pipe, 0o600))
	for _, path := range []string{pipe, t.TempDir()} {
		if _, err := (Store{Dir: t.TempDir()}).Open(t.Context(), "docker-archive:"+path, Search{}); err == nil || !strings.Contains(err.Error(), "no regular file") {
			t.Errorf("%s: error %v", path, err)
		}
	}
}

// A layer whose content isn't what the configuration says is refused, and a configuration
// for another machine, too.
func TestDockerArchiveLies(t *testing.T) {
	testutil.NeedRoot(t)
	entry, files := dockerSave("aaa", nil, "A")
	_, other := dockerSave("bbb", nil, "B")
	files[2].Body = other[2].Body
	s := Store{Dir: t.TempDir()}
	img, err := s.Open(t.Context(), "docker-archive:"+writeArchive(t, "x.tar", append(files, manifestJSON(entry))...), Search{})
	testutil.Must(t, err)
	defer img.Close()
	if _, err := s.Unpack(t.Context(), img, nil); err == nil || !strings.Contains(err.Error(), "as the image says") {
		t.Errorf("error %v", err)
	}
	entry, files = dockerSave("aaa", nil, "A")
	files[0].Body = strings.Replace(files[0].Body, runtime.GOARCH, "s390x", 1)
	_, err = s.Open(t.Context(), "docker-archive:"+writeArchive(t, "x.tar", append(files, manifestJSON(entry))...), Search{})
	if !errors.Is(err, ErrPlatform) || !strings.Contains(err.Error(), "image is for linux/s390x, and linux/"+runtime.GOARCH+" is wanted") {
		t.Errorf("error %v", err)
	}
}

// FuzzArchive: whatever a file is, it is an image or an error.
func FuzzArchive(f *testing.F) {
	entry, files := dockerSave("aaa", []string{"app:1"}, "A")
	data, err := io.ReadAll(oci.Tar(append(files, manifestJSON(entry))...))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte{0x1f, 0x8b, 8, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		path := filepath.Join(dir, "x.tar")
		testutil.Must(t, os.WriteFile(path, data, 0o600))
		for _, scheme := range []string{"docker-archive:", "oci-archive:"} {
			img, err := Store{Dir: dir}.Open(t.Context(), scheme+path, Search{})
			if err == nil {
				img.Close()
			} else if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than a line: %v", err)
			}
		}
	})
}

func digestOf(data []byte) digest { return digest(fake.Digest(data)) }

// FuzzManifest: documents of strangers are an image or an error, and their digests
// lead to no path outside.
func FuzzManifest(f *testing.F) {
	f.Add([]byte(`{"schemaVersion":2,"manifests":[{"mediaType":"`+typeManifest+`","digest":"sha256:../../x","size":2}]}`), []byte(`{}`))
	f.Add([]byte(`{"config":{"mediaType":"`+typeConfig+`","digest":"sha256:00","size":2},"layers":[{"digest":"x","size":-1}]}`), []byte(`{"rootfs":{"diff_ids":["sha256:0"]}}`))
	f.Fuzz(func(t *testing.T, top, second []byte) {
		o := documents{digestOf(top): top, digestOf(second): second}
		want := thisPlatform(t)
		for _, mediaType := range []string{typeIndex, typeManifest} {
			d, err := pickManifest(t.Context(), o, []descriptor{{MediaType: mediaType, Digest: digestOf(top), Size: int64(len(top))}}, want)
			if err != nil {
				continue
			}
			img, err := loadImage(t.Context(), o, d, want)
			if err != nil {
				continue
			}
			for _, l := range img.layers {
				if strings.Contains(Store{Dir: "/x"}.layerDir(l.chain), "..") || l.diff.validate() != nil {
					t.Errorf("layer %+v", l)
				}
			}
		}
	})
}
