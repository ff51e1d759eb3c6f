package guard

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/testutil"
)

func TestExempt(t *testing.T) {
	const secret = "0123456789abcdef0123"
	const pod, docker = "/run/containerd/io.containerd.runtime.v2.task/k8s.io/c1", "/run/containerd/io.containerd.runtime.v2.task/moby/c1"
	namespace := func(name string) map[string]string {
		return map[string]string{"io.kubernetes.cri.sandbox-namespace": name}
	}
	key := func(text string) map[string]string { return map[string]string{ExemptAnnotation: text} }
	tests := []struct {
		name, bundle string
		annotations  map[string]string
		content      string // mode of the key's file
		mode         os.FileMode
		want         bool
		err          string
	}{
		{"no annotation", docker, nil, secret, 0o600, false, ""},
		{"pod of a namespace", pod, namespace("monitoring"), "", 0, true, ""},
		{"pod of another one", pod, namespace("tenants"), "", 0, false, ""},
		{"docker's user says he is a pod", docker, namespace("monitoring"), "", 0, false, ""},
		{"podman's user has chosen a root", "/x/io.containerd.runtime.v2.task/k8s.io/overlay-containers/c1/userdata", namespace("monitoring"), "", 0, false, ""},
		{"key", docker, key(secret), secret + "\n", 0o600, true, ""},
		{"another key", docker, key(secret + "x"), secret, 0o600, false, ""},
		{"beginning of the key", docker, key(secret[:10]), secret, 0o600, false, ""},
		{"no key is configured", docker, key(secret), "", 0, false, ""},
		{"others can read it", docker, key(secret), secret, 0o640, false, "can be read by users other"},
		{"too short", docker, key("secret"), "secret", 0o600, false, "fewer than 16 bytes"},
		{"empty", docker, key(secret), "\n", 0o600, false, "fewer than 16 bytes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := Guard{Exemptions: Exemptions{Namespaces: []string{"monitoring"}}}
			if tt.content != "" {
				testutil.NeedRoot(t)
				g.Exemptions.KeyFile = filepath.Join(t.TempDir(), "key")
				if err := os.WriteFile(g.Exemptions.KeyFile, []byte(tt.content), tt.mode); err != nil {
					t.Fatal(err)
				}
			}
			got, err := g.IsExempt(annotated(tt.annotations), tt.bundle)
			if got != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got %v, %v; want %v, %q", got, err, tt.want, tt.err)
			}
		})
	}
	g := Guard{Exemptions: Exemptions{KeyFile: filepath.Join(t.TempDir(), "none")}}
	if _, err := g.IsExempt(annotated(key(secret)), ""); err == nil || !strings.Contains(err.Error(), "policy.exempt_key") {
		t.Errorf("a key file that isn't there: %v", err)
	}
}

// A key counts only in a file that only root can have written or read.
func TestExemptKeyBelongsToRoot(t *testing.T) {
	testutil.NeedRoot(t)
	const secret = "0123456789abcdef0123"
	for _, tt := range []struct {
		name string
		make func(path string) error
		err  string
	}{
		{"a user's own", func(path string) error {
			return errors.Join(os.WriteFile(path, []byte(secret), 0o600), os.Chown(path, 65534, 65534))
		}, "can be read by users other than root (user 65534, mode 0600)"},
		{"a link to one", func(path string) error {
			return errors.Join(os.WriteFile(path+"2", []byte(secret), 0o600), os.Symlink(path+"2", path))
		}, "too many levels of symbolic links"},
		{"a directory", func(path string) error { return os.Mkdir(path, 0o700) }, "is not a regular file"},
		{"a pipe without a writer", func(path string) error { return unix.Mkfifo(path, 0o600) }, "is not a regular file"},
		{"too long", func(path string) error { return os.WriteFile(path, make([]byte, maxKey+1), 0o600) }, "too large"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := Guard{Exemptions: Exemptions{KeyFile: filepath.Join(t.TempDir(), "key")}}
			if err := tt.make(g.Exemptions.KeyFile); err != nil {
				t.Fatal(err)
			}
			got, err := g.IsExempt(annotated(map[string]string{ExemptAnnotation: secret}), "")
			if got || err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got %v, %v; want %q", got, err, tt.err)
			}
			// The key's file doesn't matter for a container without the annotation.
			if got, err := g.IsExempt(annotated(nil), ""); got || err != nil {
				t.Errorf("without a key: %v, %v", got, err)
			}
		})
	}
}

func annotated(annotations map[string]string) *specs.Spec {
	return &specs.Spec{Annotations: annotations}
}
