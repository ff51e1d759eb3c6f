package guard

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/smallfile"
)

// ExemptAnnotation carries the key that exempts a container from the guard.
const ExemptAnnotation = "berth.exempt"

// Limits of the key in bytes: shorter ones could be guessed.
const (
	minKey = 16
	maxKey = 4 << 10
)

// Exemptions are the containers without a lease that keep access to all accelerators, such as
// metrics exporters and device plugins. Tenants can change neither field.
type Exemptions struct {
	// Namespaces are Kubernetes namespaces whose pods are exempt. The namespace is read from
	// annotations only in bundles that containerd's CRI plugin has made.
	Namespaces []string
	// KeyFile is a file that only root can read, with a secret; "" is none. A container
	// with the same text in [ExemptAnnotation] is exempt.
	KeyFile string
}

// IsExempt reports whether the admin exempts a container without a request, which then sees what it
// would see without berth. bundle is its directory, "" if it is unknown.
func (g Guard) IsExempt(spec *specs.Spec, bundle string) (bool, error) {
	if isPodBundle(bundle) &&
		slices.Contains(g.Exemptions.Namespaces, spec.Annotations["io.kubernetes.cri.sandbox-namespace"]) {
		return true, nil
	}
	given := spec.Annotations[ExemptAnnotation]
	if given == "" || g.Exemptions.KeyFile == "" {
		return false, nil
	}
	key, err := readKey(g.Exemptions.KeyFile)
	if err != nil {
		return false, fmt.Errorf("policy.exempt_key: %w", err)
	}
	return subtle.ConstantTimeCompare([]byte(key), []byte(strings.TrimSpace(given))) == 1, nil
}

// isPodBundle reports whether dir is a bundle directory of containerd's CRI plugin. A directory
// further below doesn't count: podman's callers choose its --root, and so a bundle's path.
func isPodBundle(dir string) bool {
	_, id, ok := strings.Cut(filepath.Clean(dir), "/io.containerd.runtime.v2.task/k8s.io/")
	return ok && !strings.Contains(id, "/")
}

func readKey(path string) (string, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd) //nolint:errcheck // only read from
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "", &os.PathError{Op: "stat", Path: path, Err: err}
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return "", fmt.Errorf("%s is not a regular file", path)
	case st.Uid != 0 || st.Mode&0o077 != 0:
		return "", fmt.Errorf("%s can be read by users other than root (user %d, mode %#o)", path, st.Uid, st.Mode&0o777)
	}
	data, err := smallfile.ReadFD(fd, st.Size, maxKey)
	if err != nil {
		return "", &os.PathError{Op: "read", Path: path, Err: err}
	}
	key := strings.TrimSpace(string(data))
	if len(key) < minKey {
		return "", errors.New(path + fmt.Sprintf(" holds fewer than %d bytes", minKey))
	}
	return key, nil
}
