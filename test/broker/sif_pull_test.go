package broker

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/image/oci"
	"github.com/berth-gpu/berth/test/images/fake"
	"github.com/berth-gpu/berth/test/rig"
)

// TestSIFPulled: SIF files of registries and of a library are run, and written to files, after they were verified.
func TestSIFPulled(t *testing.T) {
	h, image := sifHome(t, nil)
	data, err := os.ReadFile(image)
	rig.Must(t, err)
	layout := filepath.Join(t.TempDir(), "layout")
	rig.Must(t, oci.WriteSIFs(layout, "1", data))
	registry := fake.Serve(t, layout)
	library := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/images/e/c/app:2":
			fmt.Fprintf(w, `{"data":{"hash":"sha256.%s","size":%d}}`, strings.TrimPrefix(fake.Digest(data), "sha256:"), len(data))
		case "/v1/images/changed:latest":
			fmt.Fprintf(w, `{"data":{"hash":"sha256.%s","size":%d}}`, strings.TrimPrefix(fake.Digest([]byte("other")), "sha256:"), len(data))
		case "/v1/imagefile/e/c/app:2", "/v1/imagefile/changed:latest":
			_, _ = w.Write(data)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(library.Close)
	config := filepath.Join(filepath.Dir(image), "config.toml")
	writeConfig := func(text string) {
		t.Helper()
		rig.Must(t, os.WriteFile(config, []byte(text), 0o644))
	}
	writeConfig(fmt.Sprintf("[apptainer]\nlibrary = %q\n", library.URL))
	ref := "oras://" + registry.Host + "/team/app:1"
	unasked := "oras://" + registry.Host + "/team/app:3" // there is none
	run := func(words ...string) rig.Said {
		t.Helper()
		return h.run(alice, append([]string{"env", "-C", h.dir}, h.words(append([]string{"--config", config, "apptainer"}, words...)...)...)...)
	}
	for _, tt := range []struct {
		what  string
		words []string
		want  rig.Said
	}{
		{"exec", []string{"exec", ref, "sh", "-c", "echo $APPTAINER_CONTAINER $APPTAINER_NAME"}, rig.Said{Out: ref + " app:1\n"}},
		{"exec, when it is here", []string{"exec", "--nv", ref, "echo", "ran"}, rig.Said{Out: "ran\n"}},
		{"pull", []string{"pull", ref}, rig.Said{}},
		{"the file of a pull", []string{"exec", "app_1.sif", "echo", "ran"}, rig.Said{Out: "ran\n"}},
		{"pull again", []string{"pull", ref}, rig.Said{Code: 255, Err: "berth: app_1.sif exists: --force replaces it\n"}},
		{"pull --force", []string{"pull", "--force", ref}, rig.Said{}},
		{"pull into a file", []string{"pull", "other.sif", ref}, rig.Said{}},
		{"pull into a directory", []string{"pull", "--dir", ".", "--name", "third.sif", ref}, rig.Said{}},
		{"pull into no directory", []string{"pull", "--dir", "nosuch", ref}, rig.Said{Code: 255}},
		{"library", []string{"exec", "library://e/c/app:2", "echo", "ran"}, rig.Said{Out: "ran\n"}},
		{"pull of a library", []string{"pull", "library://e/c/app:2"}, rig.Said{}},
		{"no such image", []string{"exec", "library://app", "true"}, rig.Said{Code: 255, Err: "berth: library://app: not found in library " + library.URL + "; check the name and the tag\n"}},
		{"another content", []string{"exec", "library://changed", "true"}, rig.Said{Code: 255, Err: "berth: library://changed: blob is corrupt: it has another size or digest\n"}},
		{"devices that this machine hasn't", []string{"exec", "--gpus", "99", unasked, "true"}, rig.Said{Code: 255}},
		{"no such tag", []string{"exec", ref + "2", "true"}, rig.Said{Code: 255, Err: "berth: " + ref + "2: not found in registry " + registry.Host + "; check the name and the tag\n"}},
		{"no name", []string{"exec", "oras://A B", "true"}, rig.Said{Code: 255}},
		{"inspect", []string{"inspect", ref}, rig.Said{Code: 255, Err: "berth: " + ref + ": berth apptainer pull writes a file of it\n"}},
	} {
		got := run(tt.words...)
		if tt.want.Code != 0 && tt.want.Err == "" {
			tt.want.Err = got.Err
		}
		h.wantSaid(tt.what, got, tt.want)
		if strings.Contains(tt.what, "devices") && strings.Contains(got.Err, "not found") {
			t.Errorf("%s: %+v", tt.what, got) // not that of a registry without the image
		}
	}
	for _, name := range []string{"app_1.sif", "other.sif", "third.sif", "app_2.sif"} {
		got, err := os.ReadFile(filepath.Join(h.dir, name))
		if st, e := os.Stat(filepath.Join(h.dir, name)); err != nil || e != nil || string(got) != string(data) || st.Mode().Perm() != 0o755 {
			t.Errorf("%s: %v, %v, %v", name, err, e, st)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(h.dir, "*.part")); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	root := h.Run(t, h.Command(h.Berth, "--config", config, "apptainer", "exec", ref, "id", "-u"))
	h.wantSaid("root", root, rig.Said{Out: "0\n"})
	if got := h.berth("prune", "--all", "--force"); got.Code != 0 || !strings.Contains(got.Err+got.Out, "freed") {
		t.Errorf("prune: %+v", got)
	}
	if got := h.Do(t, "find", h.dir+"/.local/share/berth/images/sif", "-type", "f"); got != "" {
		t.Errorf("after prune --all: %s", got)
	}
	writeConfig("[apptainer]\nsigned_by = [\"" + strings.Repeat("0", 40) + "\"]\n")
	h.wantSaid("unsigned", run("exec", ref, "echo", "ran"), rig.Said{Code: 255, Err: "berth: " + ref + ": images have to be signed here: signature not found for object group 1\n"})
}
