// Package resolver reads images from registries with containerd's resolver: the pull half of
// the OCI distribution specification 1.1, with mirrors and plain-HTTP registries by hosts.toml,
// client certificates, tokens and redirects.
//
// The package adds what containerd's resolver lacks:
//
//   - Every answer is bounded. A body that stalls, and a document that doesn't end or is too large, is an error
//     ([transport]). Requests to busy registries are repeated.
//   - Credentials come from docker's and podman's files and from credential helpers (package credentials). They
//     are only sent to the registry's host and port. Token servers without TLS get them only for registries
//     without TLS.
//   - A hosts.toml that can't be read is an error. containerd logs it and ignores the file.
//   - Errors are one line, and Is one of package registry's errors where callers branch.
//
// Content is not verified: callers compare digests.
package resolver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sirupsen/logrus"

	"github.com/berth-gpu/berth/launcher/image/registry"
)

// Repository is a repository at its registry or at mirrors. It is safe for concurrent use.
type Repository struct {
	name     registry.Name
	resolver remotes.Resolver
	fetcher  remotes.Fetcher
}

// Open reads the configuration for a repository. It sends no request. The end of ctx ends credential helpers,
// also those of later requests.
func Open(ctx context.Context, a registry.Access, n registry.Name) (*Repository, error) {
	return openBounded(ctx, a, n, maxSilence)
}

func openBounded(ctx context.Context, a registry.Access, n registry.Name, silence time.Duration) (*Repository, error) {
	hosts, err := configureHosts(ctx, a, n, silence)
	if err != nil {
		return nil, err
	}
	return newRepository(ctx, a, n, hosts)
}

func newRepository(ctx context.Context, a registry.Access, n registry.Name, hosts []docker.RegistryHost) (_ *Repository, err error) {
	r := &Repository{name: n, resolver: docker.NewResolver(docker.ResolverOptions{
		Headers: userAgent(a),
		// The resolver calls Hosts for each fetcher. Returning the same hosts shares connections and tokens.
		Hosts: func(string) ([]docker.RegistryHost, error) { return hosts, nil },
	})}
	if r.fetcher, err = r.resolver.Fetcher(ctx, n.String()); err != nil {
		return nil, err
	}
	return r, nil
}

func userAgent(a registry.Access) http.Header {
	if a.Agent == "" {
		a.Agent = "berth"
	}
	return http.Header{"User-Agent": {a.Agent}}
}

// Resolve asks the registry for the manifest or index of the repository's name.
func (r *Repository) Resolve(ctx context.Context) (d registry.Descriptor, err error) {
	err = r.askAgain(ctx, func(ctx context.Context) error {
		_, found, err := r.resolver.Resolve(ctx, r.name.String())
		d = registry.Descriptor{MediaType: found.MediaType, Digest: found.Digest.String(), Size: found.Size}
		return err
	})
	return d, err
}

// Fetch reads a document or blob, beginning at offset from. An error in the middle means that the connection
// broke; another Fetch may continue.
func (r *Repository) Fetch(ctx context.Context, d registry.Descriptor, from int64) (body io.ReadCloser, err error) {
	err = r.askAgain(ctx, func(ctx context.Context) error {
		var err error
		body, err = r.fetcher.Fetch(ctx, ocispec.Descriptor{MediaType: d.MediaType, Digest: digest.Digest(d.Digest), Size: d.Size})
		if err != nil {
			return err
		}
		if from > 0 {
			_, err = body.(io.Seeker).Seek(from, io.SeekStart)
		}
		if err == nil {
			_, err = body.Read(nil) // the fetcher connects with the first read
		}
		if err != nil {
			return errors.Join(err, body.Close())
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return body, nil
}

// attempts is how often a request to a registry that is busy or closes the connection is sent.
const attempts = 5

// askAgain calls ask until it succeeds or returns an error that another attempt won't change. The pause
// between attempts begins at 250 ms and doubles each time.
func (r *Repository) askAgain(ctx context.Context, ask func(context.Context) error) error {
	quiet := log.WithLogger(ctx, logrus.NewEntry(silentLogger())) // the errors have what containerd logs
	for attempt := 1; ; attempt++ {
		err := ask(quiet)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !mayPass(err, attempt) {
			return r.explainError(err)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(250 * time.Millisecond << (attempt - 1)):
		}
	}
}

// mayPass reports whether another attempt may succeed. containerd itself repeats requests five times after
// timeouts.
func mayPass(err error, attempt int) bool {
	var said remoteerrors.ErrUnexpectedStatus
	var dns *net.DNSError
	var dial *net.OpError
	var network net.Error // implemented by all errors of requests
	switch {
	case attempt >= attempts, isFinal(err):
		return false
	case errors.As(err, &said):
		switch said.StatusCode {
		case http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway,
			http.StatusServiceUnavailable, http.StatusGatewayTimeout, http.StatusRequestTimeout:
			return true
		}
		return false
	case errors.As(err, &dns):
		return dns.IsTemporary
	case errors.As(err, &dial) && dial.Op == "dial":
		return attempt < 2
	case errors.As(err, &network):
		return !network.Timeout()
	}
	return errors.Is(err, io.ErrUnexpectedEOF)
}

func silentLogger() *logrus.Logger {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return l
}

// isFinal reports whether an error is the server's fault, so that another attempt won't help.
func isFinal(err error) bool {
	return errors.Is(err, http.ErrSchemeMismatch) || certificateProblem(err) != "" || errors.Is(err, errSilent) ||
		errors.Is(err, errTooLarge) || errors.Is(err, errRedirect) || errors.Is(err, errTokenInPlain)
}

// fullRepository returns the name of the repository, or of the registry for a login, for errors.
func (r *Repository) fullRepository() string {
	if r.name.Repository == "" {
		return r.name.Host
	}
	return fmt.Sprintf("%s/%s", r.name.Host, r.name.Repository)
}
