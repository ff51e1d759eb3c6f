package images

import (
	"errors"
	"fmt"
	"testing"

	"github.com/berth-gpu/berth/launcher/image/registry"
)

// TestExplainLogin: an error of a login names the registry once, and has advice.
func TestExplainLogin(t *testing.T) {
	const host = "registry.example:5000"
	for _, c := range []struct {
		name, user string
		err        error
		want       string
	}{
		{"a wrong password", "alice", fmt.Errorf("%w by registry %s: authentication required", registry.ErrDenied, host), "log in as alice: access denied by registry registry.example:5000: authentication required; check user name and password"},
		{"a server of tokens", "alice", fmt.Errorf("%w by registry auth.example", registry.ErrDenied), "log in to registry.example:5000 as alice: access denied by registry auth.example; check user name and password"},
		{"nobody listens", "", fmt.Errorf("registry %s %w: connection refused", host, registry.ErrUnreachable), "log in: registry registry.example:5000 can't be reached: connection refused"},
		{"another server", "", fmt.Errorf("%w in registry %s", registry.ErrNotFound, host), "log in to registry.example:5000: no registry of images answers there; check its address and port"},
		{"a file", "", errors.New("write /root/.docker/config.json: permission denied"), "log in to registry.example:5000: write /root/.docker/config.json: permission denied"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := explainLogin(host, c.user, c.err); got.Error() != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
