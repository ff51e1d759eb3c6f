package pull

import (
	"encoding/pem"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/test/images/fake"
	"github.com/berth-gpu/berth/test/rig"
)

// Registries are configured as containerd and docker have it: mirrors, addresses without TLS
// and authorities, for the user and by berth's configuration.
func TestHostsDirectories(t *testing.T) {
	push(t, "oci:"+busybox+":latest", "docker://"+open+"/team/box:1")
	sealed := httptest.NewTLSServer(fake.Serve(t, busybox))
	t.Cleanup(sealed.Close)
	certificate := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: sealed.Certificate().Raw}))
	const dead = "http://127.0.0.1:1"
	for _, tt := range []struct {
		name, image string
		files       map[string]string // in the directory of registry.example
		fails       string
	}{
		{"without TLS", "team/box:1", map[string]string{"hosts.toml": fmt.Sprintf("server = %q", "http://"+open)}, ""},
		{"a mirror", "team/box:1", map[string]string{"hosts.toml": fmt.Sprintf("server = %q\n[host.%q]", dead, "http://"+open)}, ""},
		{"a mirror that is down", "team/box:1", map[string]string{"hosts.toml": fmt.Sprintf("server = %q\n[host.%q]", "http://"+open, dead)}, ""},
		{"an authority", "box:latest", map[string]string{"hosts.toml": fmt.Sprintf("server = %q\nca = 'own.crt'", sealed.URL), "own.crt": certificate}, ""},
		{"without the authority", "box:latest", map[string]string{"hosts.toml": fmt.Sprintf("server = %q", sealed.URL)}, "certificate isn't trusted of registry " + strings.TrimPrefix(sealed.URL, "https://")},
		{"all is down", "team/box:1", map[string]string{"hosts.toml": fmt.Sprintf("server = %q", dead)}, "connection refused"},
		{"a damaged file", "team/box:1", map[string]string{"hosts.toml": "server ="}, "hosts.toml: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, dir := range []string{".config/containerd/certs.d", "own"} {
				h := newHome(t)
				if dir == "own" {
					f, err := os.OpenFile(h.config, os.O_APPEND|os.O_WRONLY, 0)
					rig.Must(t, err)
					_, err = fmt.Fprintf(f, "[run]\nhosts_dir = ['/no/such', %q]\n", filepath.Join(h.dir, dir))
					rig.Must(t, err)
					rig.Must(t, f.Close())
				}
				dir = filepath.Join(h.dir, dir, "registry.example")
				rig.Must(t, os.MkdirAll(dir, 0o755))
				for name, text := range tt.files {
					rig.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
				}
				if tt.fails != "" {
					h.fails(t, 1, tt.fails, "pull", "registry.example/"+tt.image)
					continue
				}
				if out := h.must(t, "run", "registry.example/"+tt.image, "echo", "hello").Out; out != "hello\n" {
					t.Errorf("says %q", out)
				}
				if all := h.listImages(t); len(all) != 1 || all[0].Short != "registry.example/"+tt.image {
					t.Errorf("%+v", all)
				}
			}
		})
	}
}
