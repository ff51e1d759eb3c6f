package resolver

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"strings"
	"time"

	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/launcher/image/registry"
)

// dockerHub is how names write the registry that helpers and files know by other names.
const dockerHub = "docker.io"

// login is a registry's account; the zero value is none.
type login struct{ user, secret, identity string }

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

// findLogin finds the credentials for a name; to have none is no error.
func findLogin(ctx context.Context, paths []string, n registry.Name) (login, error) {
	for _, path := range paths {
		data, err := smallfile.Read(path, maxCredentials)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var file credentialsFile
		if err == nil {
			err = json.Unmarshal(data, &file)
		}
		if err != nil {
			return login{}, fmt.Errorf("read credentials %s: %w", path, err)
		}
		l, err := file.findEntry(ctx, n)
		if err != nil {
			return login{}, fmt.Errorf("credentials %s: %w", path, err)
		}
		if l != (login{}) {
			return l, nil
		}
	}
	return login{}, nil
}

// findEntry looks for the most exact key first: podman's may name a repository, docker's
// are hosts or addresses of them.
func (f credentialsFile) findEntry(ctx context.Context, n registry.Name) (login, error) {
	for _, key := range credentialKeys(n) {
		if helper, ok := f.Helpers[key]; ok {
			return askHelper(ctx, helper, helperServer(n))
		}
		for written, entry := range f.Auths {
			if l, err := entry.decodeEntry(); normalizeKey(written) == key && (err != nil || l != (login{})) {
				return l, err
			}
		}
	}
	if f.Store == "" {
		return login{}, nil
	}
	return askHelper(ctx, f.Store, helperServer(n))
}

// credentialKeys are under what names credentials for a repository can stand.
func credentialKeys(n registry.Name) (all []string) {
	for path := n.Host + "/" + n.Repository; ; {
		all = append(all, path)
		i := strings.LastIndexByte(path, '/')
		if i < 0 {
			break
		}
		path = path[:i]
	}
	if n.Host == dockerHub {
		all = append(all, "index.docker.io", "registry-1.docker.io")
	}
	return all
}

// normalizeKey takes off what docker has around a host: "https://index.docker.io/v1/".
func normalizeKey(key string) string {
	key = strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	return strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(key, "/"), "/v1"), "/v2")
}

// helperServer is what helpers know a registry as.
func helperServer(n registry.Name) string {
	if n.Host == dockerHub {
		return "https://index.docker.io/v1/"
	}
	return n.Host
}

func (e credentialsEntry) decodeEntry() (login, error) {
	l := login{e.Username, e.Password, e.Identity}
	if e.Auth == "" {
		return l, nil
	}
	data, err := base64.StdEncoding.DecodeString(e.Auth)
	user, secret, ok := strings.Cut(string(data), ":")
	if err != nil || !ok {
		return login{}, errors.New("an entry's auth is not USER:PASSWORD in base64")
	}
	l.user, l.secret = user, strings.TrimRight(secret, "\x00")
	return l, nil
}

// askHelper runs a credential helper, a program of PATH in docker's protocol: the registry
// goes in, a JSON document comes out.
func askHelper(ctx context.Context, helper, server string) (login, error) {
	if helper == "" || strings.ContainsAny(helper, "/\x00") {
		return login{}, fmt.Errorf("%q is no name of a credential helper", helper)
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "docker-credential-"+helper, "get")
	cmd.Stdin = strings.NewReader(server)
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		var failed *exec.ExitError
		if errors.As(err, &failed) && bytes.Contains(bytes.ToLower(out), []byte("credentials not found")) {
			return login{}, nil
		}
		return login{}, fmt.Errorf("docker-credential-%s: %w: %s", helper, err, makePrintable(string(out)))
	}
	var answer struct{ Username, Secret string }
	if err := json.Unmarshal(out, &answer); err != nil {
		return login{}, fmt.Errorf("docker-credential-%s: read its answer: %w", helper, err)
	}
	if answer.Username == "<token>" {
		return login{identity: answer.Secret}, nil
	}
	return login{user: answer.Username, secret: answer.Secret}, nil
}
