package resolver

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/auth"
	"github.com/containerd/containerd/v2/core/remotes/docker/config"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/sirupsen/logrus"

	"github.com/berth-gpu/berth/launcher/image/credentials"
	"github.com/berth-gpu/berth/launcher/image/registry"
)

// configureHosts returns the hosts to ask for a name, mirrors first, as hosts.toml has them.
func configureHosts(ctx context.Context, a registry.Access, n registry.Name, silence time.Duration) ([]docker.RegistryHost, error) {
	broken := &hostsFileError{}
	logger := silentLogger()
	logger.AddHook(broken)
	hosts, err := config.ConfigureHosts(log.WithLogger(ctx, logrus.NewEntry(logger)), config.HostOptions{
		HostDir: func(host string) (string, error) { return findHostDir(a.HostDirs, host) },
		UpdateClient: func(c *http.Client) error { // called twice for some clients
			if t, ok := c.Transport.(*http.Transport); ok {
				t.ResponseHeaderTimeout = silence
				t.DisableCompression = true
				c.Transport = transport{RoundTripper: t, silence: silence}
			}
			c.CheckRedirect = checkRedirect
			return nil
		},
	})(n.Host)
	if err == nil {
		err = broken.err
	}
	if err != nil {
		return nil, fmt.Errorf("configure registry %s: %w", n.Host, err)
	}
	for i := range hosts {
		hosts[i].Authorizer = newAuthorizer(a, hosts[i], silence, func() (credentials.Login, error) {
			at := n
			if hosts[i].Host != "registry-1.docker.io" || n.Host != registry.DockerHub { // not the registry of docker.io
				at.Host = hosts[i].Host
			}
			l, _, err := credentials.Find(ctx, a.Credentials, at)
			return l, err
		})
	}
	return hosts, nil
}

// findHostDir returns the first directory for a host.
func findHostDir(roots []string, host string) (string, error) {
	for _, root := range roots {
		dir, err := config.HostDirFromRoot(root)(host)
		if err == nil || !errdefs.IsNotFound(err) {
			return dir, err
		}
	}
	return "", errdefs.ErrNotFound
}

// hostsFileError is a log hook that catches the error that containerd logs for a hosts.toml it can't read.
type hostsFileError struct{ err error }

// Levels makes it a logrus.Hook.
func (h *hostsFileError) Levels() []logrus.Level { return []logrus.Level{logrus.ErrorLevel} }

// Fire stores the first error.
func (h *hostsFileError) Fire(e *logrus.Entry) error {
	if h.err == nil {
		h.err = fmt.Errorf("%s: %v", strings.TrimPrefix(e.Message, "failed to "), e.Data[logrus.ErrorKey])
	}
	return nil
}

// authorizer wraps containerd's authorizer, which sends credentials to one host only.
type authorizer struct{ docker.Authorizer }

// newAuthorizer makes the authorizer of a registry or mirror, with the login that find returns.
func newAuthorizer(a registry.Access, h docker.RegistryHost, silence time.Duration, find func() (credentials.Login, error)) docker.Authorizer {
	client := *h.Client
	client.Transport = transport{RoundTripper: client.Transport, silence: silence, documents: true}
	header := userAgent(a)
	for key, values := range h.Header {
		header[key] = append(header[key], values...)
	}
	return authorizer{docker.NewDockerAuthorizer(docker.WithAuthClient(&client), docker.WithAuthHeader(header),
		docker.WithAuthCreds(func(host string) (user, secret string, err error) {
			if host != h.Host { // the target of a redirect
				return "", "", nil
			}
			l, err := find()
			if l.Identity != "" {
				return "", l.Identity, err
			}
			return l.User, l.Secret, err
		}))}
}

// AddResponses returns an error if a registry with TLS asks for a token of a server without TLS.
func (a authorizer) AddResponses(ctx context.Context, responses []*http.Response) error {
	last := responses[len(responses)-1]
	for _, c := range auth.ParseAuthHeader(last.Header) {
		if realm := c.Parameters["realm"]; c.Scheme == auth.BearerAuth && last.Request.URL.Scheme == "https" {
			if to, err := url.Parse(realm); err != nil || to.Scheme != "https" {
				return fmt.Errorf("%w: %s", errTokenInPlain, makePrintable(realm))
			}
		}
	}
	return a.Authorizer.AddResponses(ctx, responses)
}
