// Package registry reads images from registries: the pull half of the OCI
// distribution specification 1.1, which Docker's registries speak too.
//
// It knows names ([Parse]), credentials as docker, podman and their helpers keep
// them, certificates by registry, and how to go on reading a blob in its middle.
// It doesn't know what is in a manifest, and checks no digest: who asks does, for
// only that is proof of what came.
//
// It speaks HTTP itself and not through a client library: those bring the better
// part of a second engine along, and every berth run would load it.
package registry

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Access is how registries are reached. The zero value uses no credentials, no
// proxy and the system's certificates.
type Access struct {
	// Credentials are files of docker's or podman's format. The first that knows a
	// registry is taken; a file that doesn't exist knows none.
	Credentials []string
	// Certs are directories that have one directory for each registry, with its
	// authorities (*.crt) and our certificates (*.cert and *.key), as docker has them.
	Certs []string
	// Proxy chooses a proxy, as http.Transport has it; nil means none.
	Proxy func(*http.Request) (*url.URL, error) `json:"-"`
	// Agent is what we call ourselves; "" means berth.
	Agent string
	// Patience is how long a connection may be silent; 0 means a minute.
	Patience time.Duration
}

// Repository is one of a registry's. Any number of goroutines may use it.
type Repository struct {
	name   Name
	access Access
	client *http.Client

	mu        sync.Mutex
	plain     bool   // without TLS, as only a registry of this machine may
	authority string // the Authorization header, "" before it was asked for
}

// Limits of what a registry may make us read or wait for.
const (
	maxManifest = 16 << 20
	maxError    = 64 << 10
	maxToken    = 1 << 20
	attempts    = 5
	maxWait     = time.Minute
)

// Open prepares for a name's repository. Nothing is asked yet.
func (a Access) Open(n Name) (*Repository, error) {
	trust, err := a.tls(n.Host)
	if err != nil {
		return nil, err
	}
	if a.Patience == 0 {
		a.Patience = time.Minute
	}
	transport := &http.Transport{
		Proxy:                 a.Proxy,
		DialContext:           (&net.Dialer{Timeout: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:   30 * time.Second,
		ResponseHeaderTimeout: a.Patience,
		IdleConnTimeout:       time.Minute,
		TLSClientConfig:       trust,
		ForceAttemptHTTP2:     true,
		DisableCompression:    true, // blobs are meant byte for byte
	}
	return &Repository{name: n, access: a, client: &http.Client{Transport: transport, CheckRedirect: redirect}}, nil
}

// redirect follows a registry to where its blobs are, but never out of TLS, and to
// another server without the credentials: another port is somebody else's.
func redirect(r *http.Request, via []*http.Request) error {
	if len(via) > 10 {
		return errors.New("more than 10 redirections")
	}
	if via[0].URL.Scheme == "https" && r.URL.Scheme != "https" {
		return fmt.Errorf("it leads from https to %s", r.URL.Scheme)
	}
	if r.URL.Host != via[0].URL.Host {
		r.Header.Del("Authorization")
	}
	return nil
}

// Close gives back the connections that wait for another request.
func (r *Repository) Close() { r.client.CloseIdleConnections() }

// Name is what the repository was opened for.
func (r *Repository) Name() Name { return r.name }

// Manifest reads the manifest or index of a tag or digest; "" means the name's own.
// The content is unchecked.
func (r *Repository) Manifest(ctx context.Context, reference string, accept []string) (data []byte, mediaType string, err error) {
	if reference == "" {
		reference = r.name.reference()
	}
	header := http.Header{"Accept": {strings.Join(accept, ", ")}}
	res, err := r.get(ctx, "manifests/"+reference, header)
	if err != nil {
		return nil, "", err
	}
	defer res.Body.Close()
	data, err = io.ReadAll(io.LimitReader(r.soon(res.Body), maxManifest+1))
	if err == nil && len(data) > maxManifest {
		err = fmt.Errorf("it is larger than %d bytes", maxManifest)
	}
	if err != nil {
		return nil, "", fmt.Errorf("read manifest %s: %w", reference, err)
	}
	return data, res.Header.Get("Content-Type"), nil
}

// Blob reads a blob beginning with the byte at from, and fails with ErrRange if the
// registry can't begin there. The content is unchecked; an error in its middle
// means that the connection broke, and that another Blob may go on.
func (r *Repository) Blob(ctx context.Context, digest string, from int64) (io.ReadCloser, error) {
	header := http.Header{}
	if from > 0 {
		header.Set("Range", "bytes="+strconv.FormatInt(from, 10)+"-")
	}
	res, err := r.get(ctx, "blobs/"+digest, header)
	if err != nil {
		return nil, err
	}
	if got := start(res); got != from {
		res.Body.Close()
		return nil, fmt.Errorf("%w at byte %d of blob %s", ErrRange, from, digest)
	}
	return res.Body, nil
}

// start is where a response's body begins in what was asked for, -1 if it doesn't say.
func start(res *http.Response) int64 {
	if res.StatusCode != http.StatusPartialContent {
		return 0
	}
	text, _ := strings.CutPrefix(res.Header.Get("Content-Range"), "bytes ")
	first, _, _ := strings.Cut(text, "-")
	n, err := strconv.ParseInt(first, 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// get asks for something of the repository until it is there, and again where the
// registry is only busy.
func (r *Repository) get(ctx context.Context, path string, header http.Header) (*http.Response, error) {
	for attempt := 1; ; attempt++ {
		res, err := r.authorised(ctx, path, header)
		if err == nil && res.StatusCode < 300 {
			return res, nil
		}
		if err == nil {
			err = r.refused(res)
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		wait, again := retry(err, attempt)
		if !again {
			return nil, r.explain(err)
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(wait):
		}
	}
}

// authorised asks once, and once more with the credentials that it was asked for.
func (r *Repository) authorised(ctx context.Context, path string, header http.Header) (*http.Response, error) {
	used := r.credentials()
	res, err := r.ask(ctx, path, header, used)
	if err != nil || res.StatusCode != http.StatusUnauthorized {
		return res, err
	}
	authority, err := r.authorise(ctx, used, res.Header.Values("WWW-Authenticate"))
	if err != nil || authority == "" || authority == used {
		if err == nil {
			return res, nil // its refusal says why
		}
		res.Body.Close()
		return nil, err
	}
	res.Body.Close()
	return r.ask(ctx, path, header, authority)
}

func (r *Repository) credentials() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.authority
}

func (r *Repository) ask(ctx context.Context, path string, header http.Header, authority string) (*http.Response, error) {
	r.mu.Lock()
	plain := r.plain
	r.mu.Unlock()
	res, err := r.send(ctx, r.url(plain, path), header, authority)
	// As docker does, and only for this machine: TLS first, then none.
	if err != nil && !plain && loopback(r.name.Host) && withoutTLS(err) {
		r.mu.Lock()
		r.plain = true
		r.mu.Unlock()
		return r.send(ctx, r.url(true, path), header, authority)
	}
	return res, err
}

func (r *Repository) url(plain bool, path string) string {
	scheme, host := "https", r.name.Host
	if plain {
		scheme = "http"
	}
	if host == dockerHub {
		host = "registry-1.docker.io" // where its registry is
	}
	return scheme + "://" + host + "/v2/" + r.name.Repository + "/" + path
}

func (r *Repository) send(ctx context.Context, url string, header http.Header, authority string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	req.Header = header.Clone()
	r.introduce(req)
	if authority != "" {
		req.Header.Set("Authorization", authority)
	}
	return r.do(req)
}

// do is the client's, with an answer whose body may not fall silent.
func (r *Repository) do(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	res, err := r.client.Do(req.WithContext(ctx))
	if err != nil {
		cancel(nil)
		return nil, err
	}
	res.Body = newPatient(ctx, res.Body, r.access.Patience, cancel)
	return res, nil
}

// soon has the body of a small document come to its end within twice our patience,
// however steadily it drips.
func (r *Repository) soon(body io.ReadCloser) io.Reader {
	if p, ok := body.(*patient); ok {
		p.until = time.Now().Add(2 * p.time)
	}
	return body
}

// withoutTLS says whether an error is what comes of speaking TLS to a server that
// doesn't: some answer, some hang up.
func withoutTLS(err error) bool {
	var header tls.RecordHeaderError
	return errors.Is(err, http.ErrSchemeMismatch) || errors.As(err, &header) ||
		errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)
}

func (r *Repository) introduce(req *http.Request) {
	agent := r.access.Agent
	if agent == "" {
		agent = "berth"
	}
	req.Header.Set("User-Agent", agent)
}

// patient is a body that may not be silent for too long.
type patient struct {
	io.ReadCloser
	ctx    context.Context
	time   time.Duration
	until  time.Time // zero is no end
	timer  *time.Timer
	cancel context.CancelCauseFunc
}

// errSilent: nothing came for too long.
var errSilent = errors.New("the registry has fallen silent")

func newPatient(ctx context.Context, body io.ReadCloser, patience time.Duration, cancel context.CancelCauseFunc) *patient {
	timer := time.AfterFunc(patience, func() { cancel(errSilent) })
	return &patient{ReadCloser: body, ctx: ctx, time: patience, timer: timer, cancel: cancel}
}

func (p *patient) Read(b []byte) (int, error) {
	wait := p.time
	if !p.until.IsZero() {
		wait = min(wait, max(time.Until(p.until), 0))
	}
	p.timer.Reset(wait)
	n, err := p.ReadCloser.Read(b)
	p.timer.Stop() // how long the reader takes is its own affair
	if err != nil && !errors.Is(err, io.EOF) && errors.Is(context.Cause(p.ctx), errSilent) {
		err = errSilent
	}
	return n, err
}

func (p *patient) Close() error {
	p.timer.Stop()
	err := p.ReadCloser.Close()
	p.cancel(nil)
	return err
}
