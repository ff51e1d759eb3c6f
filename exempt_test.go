package berth

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
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
		content      string // of the key's file, "" for none configured
		mode         os.FileMode
		want         bool
		err          string
	}{
		{"nobody", docker, nil, secret, 0o600, false, ""},
		{"pod of a namespace", pod, namespace("monitoring"), "", 0, true, ""},
		{"pod of another one", pod, namespace("tenants"), "", 0, false, ""},
		{"docker's user says he is a pod", docker, namespace("monitoring"), "", 0, false, ""},
		{"key", docker, key(secret), secret + "\n", 0o600, true, ""},
		{"another key", docker, key(secret + "x"), secret, 0o600, false, ""},
		{"beginning of the key", docker, key(secret[:10]), secret, 0o600, false, ""},
		{"no key is configured", docker, key(secret), "", 0, false, ""},
		{"others can read it", docker, key(secret), secret, 0o640, false, "can be read by others"},
		{"too short", docker, key("secret"), "secret", 0o600, false, "fewer than 16 bytes"},
		{"empty", docker, key(secret), "\n", 0o600, false, "fewer than 16 bytes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := Policy{ExemptNamespaces: []string{"monitoring"}}
			if tt.content != "" {
				if os.Geteuid() != 0 {
					t.Skip("needs root")
				}
				p.ExemptKey = filepath.Join(t.TempDir(), "key")
				if err := os.WriteFile(p.ExemptKey, []byte(tt.content), tt.mode); err != nil {
					t.Fatal(err)
				}
			}
			got, err := p.exempt(tt.bundle, tt.annotations)
			if got != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got %v, %v; want %v, %q", got, err, tt.want, tt.err)
			}
		})
	}
	p := Policy{ExemptKey: filepath.Join(t.TempDir(), "none")}
	if _, err := p.exempt("", key(secret)); err == nil || !strings.Contains(err.Error(), "policy.exempt_key") {
		t.Errorf("a key file that isn't there: %v", err)
	}
}
