// Package resolver reads images from registries with containerd's resolver: the pull half of
// the OCI distribution specification 1.1, with mirrors and plain-HTTP registries by hosts.toml,
// client certificates, tokens and redirects.
//
// The package adds what containerd leaves open:
//
//   - Every answer is bounded. A body that is silent, and a document that does not end or is
//     too large, is an error ([transport]). Busy registries are asked again.
//   - Credentials come from docker's and podman's files and from credential helpers (package
//     credentials). They are sent to the registry's host and port alone, and to token servers without TLS only by
//     registries without TLS.
//   - A hosts.toml that cannot be read is an error. containerd logs it and asks the registry
//     as if there were none.
//   - Errors are one line, and Is one of package registry's where callers branch.
//
// Nothing that is read is verified: callers compare digests.
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

// Repository is one repository, at its registry or at mirrors of it. Any number of goroutines
// may use it.
type Repository struct {
	name     registry.Name
	resolver remotes.Resolver
	fetcher  remotes.Fetcher
}

// Open reads how a repository is reached. Nothing is asked of the registry yet. ctx ends
// credential helpers.
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
		// The resolver asks for the hosts again for each fetcher. One set of them shares
		// connections and tokens.
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

// Resolve asks which manifest or index the repository's name stands for.
func (r *Repository) Resolve(ctx context.Context) (d registry.Descriptor, err error) {
	err = r.askAgain(ctx, func(ctx context.Context) error {
		_, found, err := r.resolver.Resolve(ctx, r.name.String())
		d = registry.Descriptor{MediaType: found.MediaType, Digest: found.Digest.String(), Size: found.Size}
		return err
	})
	return d, err
}

// Fetch reads a document or blob from a byte on. An error in its middle means that the
// connection broke, and that another Fetch may go on.
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
			_, err = body.Read(nil) // the fetcher connects when it is first read from
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

// attempts is how often a registry is asked that is busy or hangs up.
const attempts = 5

// askAgain asks until there is an answer, or one that asking again will not change. It pauses for
// a quarter of a second first, and twice as long each time.
func (r *Repository) askAgain(ctx context.Context, ask func(context.Context) error) error {
	quiet := log.WithLogger(ctx, logrus.NewEntry(silentLogger())) // errors say what containerd would log
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

// mayPass reports whether a registry may answer when it is asked again. containerd itself asks again
// after timeouts, five times.
func mayPass(err error, attempt int) bool {
	var said remoteerrors.ErrUnexpectedStatus
	var dns *net.DNSError
	var dial *net.OpError
	var network net.Error // every error of a request is one
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

// isFinal says that an error of a connection is about the other side, not about the network.
func isFinal(err error) bool {
	return errors.Is(err, http.ErrSchemeMismatch) || certificateProblem(err) != "" || errors.Is(err, errSilent) ||
		errors.Is(err, errTooLarge) || errors.Is(err, errRedirect) || errors.Is(err, errTokenInPlain)
}

// fullRepository names the repository, or the registry, in errors.
func (r *Repository) fullRepository() string {
	if r.name.Repository == "" {
		return r.name.Host
	}
	return fmt.Sprintf("%s/%s", r.name.Host, r.name.Repository)
}
