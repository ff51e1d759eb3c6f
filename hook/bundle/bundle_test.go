package bundle

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/runtimestate"
)

const plain = `{"ociVersion":"1.0.0", "process":{"env":["A=1"],"cwd":"/"}}` + "\n"

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return strings.Join(all, " ")
}

func open(t *testing.T, dir string) *Bundle {
	t.Helper()
	b, err := Open(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// rewrite adds one variable to whatever the original has.
func rewrite(t *testing.T, dir, variable string) *Bundle {
	t.Helper()
	b := open(t, dir)
	if _, err := b.Lock(); err != nil {
		t.Fatal(err)
	}
	spec, err := b.Spec()
	if err != nil {
		t.Fatal(err)
	}
	spec.Process.Env = append(spec.Process.Env, variable)
	if err := b.Write(spec); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	return b
}

func env(t *testing.T, dir string) string {
	t.Helper()
	d := parse(t, get(t, filepath.Join(dir, "config.json")))
	spec, err := d.Spec()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(spec.Process.Env, " ")
}

func restore(t *testing.T, dir string) {
	t.Helper()
	if err := open(t, dir).Restore(); err != nil {
		t.Fatal(err)
	}
}

func TestWriteAndRestore(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "config.json")
	put(t, config, plain)
	if os.Geteuid() == 0 {
		if err := os.Chown(config, 12, 34); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(config, 0o604); err != nil {
		t.Fatal(err)
	}
	was, err := os.Stat(config)
	if err != nil {
		t.Fatal(err)
	}
	rewrite(t, dir, "B=2")
	if got := env(t, dir); got != "A=1 B=2" {
		t.Errorf("env is %s", got)
	}
	kept, err := os.Stat(config + ".berth")
	if err != nil || !os.SameFile(was, kept) || get(t, config+".berth") != plain {
		t.Errorf("the original isn't kept: %v", err)
	}
	now, err := os.Stat(config)
	if err != nil {
		t.Fatal(err)
	}
	if owner(now) != owner(was) || now.Mode() != was.Mode() {
		t.Errorf("mode and owner: %v %v, want %v %v", now.Mode(), owner(now), was.Mode(), owner(was))
	}
	for range 2 {
		restore(t, dir)
		back, err := os.Stat(config)
		if err != nil || !os.SameFile(was, back) || names(t, dir) != "config.json" {
			t.Errorf("after the restore: %v, %s", err, names(t, dir))
		}
	}
}

func owner(fi fs.FileInfo) string {
	st := fi.Sys().(*syscall.Stat_t)
	return fmt.Sprint(st.Uid, st.Gid)
}

func TestWriteStartsFromTheOriginal(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "config.json"), plain)
	for _, v := range []string{"B=2", "C=3", "D=4"} {
		rewrite(t, dir, v)
		if got := env(t, dir); got != "A=1 "+v {
			t.Errorf("env is %s, want A=1 %s", got, v)
		}
	}
	restore(t, dir)
	if got := get(t, filepath.Join(dir, "config.json")); got != plain {
		t.Errorf("restored %s", got)
	}
}

func TestWriteWithoutChange(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "config.json")
	put(t, config, plain)
	was, _ := os.Stat(config)
	for _, before := range []func(){func() {}, func() { rewrite(t, dir, "B=2") }} {
		before()
		b := open(t, dir)
		spec, err := b.Spec()
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Write(spec); err != nil {
			t.Fatal(err)
		}
		if now, _ := os.Stat(config); !os.SameFile(was, now) || names(t, dir) != "config.json" {
			t.Errorf("the directory has %s, and config.json is another file", names(t, dir))
		}
	}
}

func TestEngineRewritesConfig(t *testing.T) {
	fresh := `{"ociVersion":"1.0.0","process":{"env":["NEW=1"]}}`
	tests := []struct {
		name  string
		write func(t *testing.T, config string)
		want  string
	}{
		{"in place", func(t *testing.T, config string) { put(t, config, fresh) }, "NEW=1 Z=1"},
		{"by rename", func(t *testing.T, config string) {
			put(t, config+".x", fresh)
			if err := os.Rename(config+".x", config); err != nil {
				t.Fatal(err)
			}
		}, "NEW=1 Z=1"},
		{"a change to what berth wrote", func(t *testing.T, config string) {
			put(t, config, strings.Replace(get(t, config), `"B=2"`, `"B=3"`, 1))
		}, "A=1 B=3 Z=1"},
		{"the original itself", func(t *testing.T, config string) { put(t, config, plain) }, "A=1 Z=1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			config := filepath.Join(dir, "config.json")
			put(t, config, plain)
			rewrite(t, dir, "B=2")
			tt.write(t, config)
			engines := get(t, config)
			if b, err := open(t, dir).RewrittenSpec(); err != nil || b != nil {
				t.Errorf("taken for berth's own (%v)", err)
			}
			rewrite(t, dir, "Z=1")
			if got := env(t, dir); got != tt.want {
				t.Errorf("env is %s, want %s", got, tt.want)
			}
			restore(t, dir)
			if get(t, config) != engines || names(t, dir) != "config.json" {
				t.Errorf("restored %s", get(t, config))
			}
		})
	}
}

func TestRestoreKeepsEngineChanges(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "config.json")
	put(t, config, plain)
	rewrite(t, dir, "B=2")
	put(t, config, `{"ociVersion":"1.1.0"}`)
	restore(t, dir)
	if get(t, config) != `{"ociVersion":"1.1.0"}` || names(t, dir) != "config.json" {
		t.Errorf("restored %s, left %s", get(t, config), names(t, dir))
	}
}

func TestEmptyAfterPowerFailure(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "config.json")
	put(t, config, plain)
	rewrite(t, dir, "B=2")
	put(t, config, "")
	rewrite(t, dir, "C=3")
	if got := env(t, dir); got != "A=1 C=3" {
		t.Errorf("env is %s", got)
	}
	put(t, config, "")
	restore(t, dir)
	if get(t, config) != plain {
		t.Errorf("restored %s", get(t, config))
	}
}

// TestSymlinks: a link in place of config.json is replaced and restored. Its target is never written.
func TestSymlinks(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(t.TempDir(), "spec.json")
	put(t, target, plain)
	config := filepath.Join(dir, "config.json")
	if err := os.Symlink(target, config); err != nil {
		t.Fatal(err)
	}
	alias := filepath.Join(t.TempDir(), "alias")
	if err := os.Symlink(dir, alias); err != nil {
		t.Fatal(err)
	}
	rewrite(t, alias, "B=2")
	if got := env(t, dir); got != "A=1 B=2" || get(t, target) != plain {
		t.Errorf("env is %s, and the link's target %s", got, get(t, target))
	}
	restore(t, alias)
	if to, err := os.Readlink(config); err != nil || to != target || get(t, target) != plain {
		t.Errorf("link to %s (%v)", to, err)
	}
}

func TestOpenErrors(t *testing.T) {
	tests := []struct {
		name string
		make func(t *testing.T, dir string)
		want string
	}{
		{"missing", func(*testing.T, string) {}, "config.json is missing"},
		{"a directory", func(t *testing.T, dir string) {
			if err := os.Mkdir(dir+"/config.json", 0o755); err != nil {
				t.Fatal(err)
			}
		}, "not a regular file"},
		{"a pipe", func(t *testing.T, dir string) {
			if err := unix.Mkfifo(dir+"/config.json", 0o644); err != nil {
				t.Fatal(err)
			}
		}, "not a regular file"},
		{"too large", func(t *testing.T, dir string) {
			put(t, dir+"/config.json", "")
			if err := os.Truncate(dir+"/config.json", runtimestate.MaxSpec+1); err != nil {
				t.Fatal(err)
			}
		}, "more than the limit"},
		{"broken", func(t *testing.T, dir string) { put(t, dir+"/config.json", "{") }, "broken JSON at byte 1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			tt.make(t, dir)
			_, err := Open(dir, "")
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want %q in one line", err, tt.want)
			}
		})
	}
	if _, err := Open(filepath.Join(t.TempDir(), "none"), ""); err == nil || !strings.Contains(err.Error(), "there is no such directory") {
		t.Errorf("no directory: %v", err)
	}
}

func TestAnotherConfigName(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	put(t, filepath.Join(elsewhere, "my.json"), plain)
	b, err := Open(dir, filepath.Join(elsewhere, "my.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	spec, err := b.Spec()
	if err != nil {
		t.Fatal(err)
	}
	spec.Annotations = map[string]string{"k": "v"}
	if err := b.Write(spec); err != nil {
		t.Fatal(err)
	}
	if names(t, elsewhere) != "my.json my.json.berth" || names(t, dir) != "" {
		t.Errorf("files: %s; %s", names(t, elsewhere), names(t, dir))
	}
}

// TestKilledWriter: a writer that is killed at any moment leaves a bundle that can be read and
// restored. This test is its own writer.
func TestKilledWriter(t *testing.T) {
	if dir := os.Getenv("BUNDLE_TEST_WRITER"); dir != "" {
		for i := 0; ; i++ {
			rewrite(t, dir, fmt.Sprint("N=", i))
			if i%3 == 0 {
				restore(t, dir)
			}
		}
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "config.json")
	put(t, config, plain)
	for i := range 30 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKilledWriter$")
		cmd.Env = append(os.Environ(), "BUNDLE_TEST_WRITER="+dir)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(10+i) * time.Millisecond)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		b := open(t, dir)
		if !bytes.Equal(b.orig.raw, []byte(plain)) {
			t.Fatalf("round %d: the original has become %s", i, b.orig.raw)
		}
		if got := env(t, dir); got != "A=1" && !strings.HasPrefix(got, "A=1 N=") {
			t.Fatalf("round %d: env is %s", i, got)
		}
	}
	restore(t, dir)
	if get(t, config) != plain || names(t, dir) != "config.json" {
		t.Errorf("restored %s, left %s", get(t, config), names(t, dir))
	}
}

func ExampleDocument_Edit() {
	d, err := Parse([]byte(`{"ociVersion":"1.0.0", "vendor":{"n":1.0}, "process":{"env":["A=1"]}}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	spec, err := d.Spec()
	if err != nil {
		fmt.Println(err)
		return
	}
	spec.Mounts = []specs.Mount{{Destination: "/data"}}
	edited, err := d.Edit(spec)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(string(edited.Bytes()))
	// Output: {"ociVersion":"1.0.0","vendor":{"n":1.0},"process":{"env":["A=1"]},"mounts":[{"destination":"/data"}]}
}
