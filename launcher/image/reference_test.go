package image

import (
	"os"
	"path/filepath"
	"testing"
)

func TestParseReference(t *testing.T) {
	dir := t.TempDir()
	layout, plain, file := filepath.Join(dir, "layout"), filepath.Join(dir, "root"), filepath.Join(dir, "a.tar")
	for _, d := range []string{layout, plain} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{filepath.Join(layout, "oci-layout"), file} {
		if err := os.WriteFile(f, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name, ref string
		want      Reference
	}{
		{"a name", "debian:13", Reference{Kind: Registry, Path: "debian:13"}},
		{"a name, said", "docker://debian", Reference{Kind: Registry, Path: "debian"}},
		{"a layout", layout, Reference{Layout, layout, ""}},
		{"a tag of a layout", layout + ":x/y:1", Reference{Layout, layout, "x/y:1"}},
		{"a layout, said", "oci:" + layout, Reference{Layout, layout, ""}},
		{"an archive", "docker-archive:" + file + ":name", Reference{DockerArchive, file, "name"}},
		{"an archive of some kind", file, Reference{Archive, file, ""}},
		{"a directory", plain, Reference{Kind: Directory, Path: plain}},
		{"a directory, said", "dir:" + plain, Reference{Kind: Directory, Path: plain}},
		{"a path that isn't there", "/nosuch", Reference{Kind: Directory, Path: "/nosuch"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := ParseReference(c.ref)
			if got != c.want || err != nil {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}
