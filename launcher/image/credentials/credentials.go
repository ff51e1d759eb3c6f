// Package credentials reads and changes the accounts of image registries in the files of docker
// and podman (config.json, auth.json) and in the credential helpers that these files name.
//
// A process of root also uses files of other users ([registry.CredentialFile]), such as the user of sudo.
// Such a user can replace the file by a symbolic link or a FIFO, and chooses the helper. So root opens
// none of these files and runs none of these helpers: a child process with the user's uid and gid does
// (see [Serve]).
package credentials

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/printable"
	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/launcher/image/registry"
)

// Login is an account at a registry; the zero value is none.
type Login struct{ User, Secret, Identity string }

// credentialsFile is docker's config.json and podman's auth.json.
type credentialsFile struct {
	Auths   map[string]credentialsEntry `json:"auths"`
	Helpers map[string]string           `json:"credHelpers"`
	Store   string                      `json:"credsStore"`
}

type credentialsEntry struct {
	Auth     string `json:"auth"`
	Username string `json:"username"`
	Password string `json:"password"`
	Identity string `json:"identitytoken"`
}

// maxCredentials bounds a file of credentials, in bytes.
const maxCredentials = 1 << 20

// findIn returns the login of the first of the files that has one for a name, and that file.
func findIn(ctx context.Context, paths []string, n registry.Name) (Login, string, error) {
	for _, path := range paths {
		data, err := readFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var file credentialsFile
		if err == nil {
			err = json.Unmarshal(data, &file)
		}
		if err != nil {
			return Login{}, "", fmt.Errorf("read credentials %s: %w", path, err)
		}
		l, err := file.findEntry(ctx, n)
		if err != nil {
			return Login{}, "", fmt.Errorf("credentials %s: %w", path, err)
		}
		if l != (Login{}) {
			return l, path, nil
		}
	}
	return Login{}, "", nil
}

// readFile reads a file of credentials. For a process of root, a file of another user is an error.
func readFile(path string) (_ []byte, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errors.New("it is no regular file")
	}
	if os.Geteuid() == 0 && st.Uid != 0 {
		return nil, fmt.Errorf("it belongs to user %d, and this is a process of root", st.Uid)
	}
	return smallfile.ReadFD(int(f.Fd()), st.Size, maxCredentials)
}

// findEntry returns the login for a name, by the most specific key. Keys of podman may contain a
// repository; those of docker are hosts or addresses of hosts.
func (f credentialsFile) findEntry(ctx context.Context, n registry.Name) (Login, error) {
	for _, key := range credentialKeys(n) {
		if helper := f.Helpers[key]; helper != "" {
			return getFromHelper(ctx, helper, serverAddress(n.Host))
		}
		for written, entry := range f.Auths {
			if l, err := entry.decodeEntry(); registry.TrimAddress(written) == key && (err != nil || l != (Login{})) {
				return l, err
			}
		}
	}
	if f.Store == "" {
		return Login{}, nil
	}
	return getFromHelper(ctx, f.Store, serverAddress(n.Host))
}

// credentialKeys returns the keys of a file that apply to a repository, the most specific first.
func credentialKeys(n registry.Name) (all []string) {
	path := n.Repository
	for path != "" {
		all = append(all, n.Host+"/"+path)
		path = path[:max(strings.LastIndexByte(path, '/'), 0)]
	}
	return append(all, hostKeys(n.Host)...)
}

// hostKeys returns the keys of a file that apply to a whole registry.
func hostKeys(host string) []string {
	if host == registry.DockerHub {
		return registry.HubAliases()
	}
	return []string{host}
}

// serverAddress is the key of a registry in docker's file and in helpers.
func serverAddress(host string) string {
	if host == registry.DockerHub {
		return "https://index.docker.io/v1/"
	}
	return host
}

func (e credentialsEntry) decodeEntry() (Login, error) {
	l := Login{e.Username, e.Password, e.Identity}
	if e.Auth == "" {
		return l, nil
	}
	data, err := base64.StdEncoding.DecodeString(e.Auth)
	user, secret, ok := strings.Cut(string(data), ":")
	if err != nil || !ok {
		return Login{}, errors.New("an entry's auth is not USER:PASSWORD in base64")
	}
	l.User, l.Secret = user, strings.TrimRight(secret, "\x00")
	return l, nil
}

// errNotKept means that a helper has no credentials of a registry.
var errNotKept = errors.New("credentials not found")

// callHelper runs a credential helper, a program of PATH in docker's protocol.
func callHelper(ctx context.Context, helper, verb string, input []byte) ([]byte, error) {
	if strings.ContainsAny(helper, "/\x00") {
		return nil, fmt.Errorf("%q is no name of a credential helper", helper)
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "docker-credential-"+helper, verb)
	cmd.Stdin = bytes.NewReader(input)
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		var failed *exec.ExitError
		if errors.As(err, &failed) && bytes.Contains(bytes.ToLower(out), []byte("credentials not found")) {
			err = errNotKept
		}
		// The output of a helper that has failed is an error message, and no password.
		if failed == nil {
			return nil, fmt.Errorf("docker-credential-%s %s: %w", helper, verb, err)
		}
		return nil, fmt.Errorf("docker-credential-%s %s: %w: %s", helper, verb, err, printable.Line(string(out[:min(len(out), 200)])))
	}
	return out, nil
}

// getFromHelper asks a helper for the login of a server. A missing login is not an error.
func getFromHelper(ctx context.Context, helper, server string) (Login, error) {
	out, err := callHelper(ctx, helper, "get", []byte(server))
	if errors.Is(err, errNotKept) {
		return Login{}, nil
	}
	if err != nil {
		return Login{}, err
	}
	var answer struct{ Username, Secret string }
	if err := json.Unmarshal(out, &answer); err != nil {
		return Login{}, fmt.Errorf("docker-credential-%s: read its answer: %w", helper, err)
	}
	if answer.Username == "<token>" {
		return Login{Identity: answer.Secret}, nil
	}
	return Login{User: answer.Username, Secret: answer.Secret}, nil
}
