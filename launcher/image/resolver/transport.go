package resolver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strconv"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
)

// Limits of what a registry may make us read or wait for.
const (
	maxSilence  = time.Minute // of an answer, before and in it
	maxDocument = 16 << 20    // bytes of everything but a blob
	maxPause    = time.Minute // before the next request to a registry that has too many
)

var (
	errSilent       = errors.New("the registry has fallen silent")
	errTooLarge     = fmt.Errorf("the answer is larger than %d bytes", maxDocument)
	errRedirect     = errors.New("redirected from https to http")
	errTokenInPlain = errors.New("the registry asks for a token of a server without TLS")
)

// transport bounds answers. A body may be silent for a while; one that is no blob also has to
// end within twice that time, however steadily it drips, and with maxDocument bytes.
type transport struct {
	http.RoundTripper
	silence time.Duration
	// documents: no answer is a blob, whatever its path.
	documents bool
}

func (t transport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	res, err := t.RoundTripper.RoundTrip(req.WithContext(ctx))
	if err != nil {
		cancel(nil)
		return nil, asPlainServer(req, err)
	}
	b := &boundedBody{ReadCloser: res.Body, ctx: ctx, cancel: cancel, silence: t.silence}
	b.timer = time.AfterFunc(t.silence, func() { cancel(errSilent) })
	b.timer.Stop() // until it is read from
	if t.documents || res.StatusCode >= 300 || !isBlob(req) {
		b.left, b.until = maxDocument, time.Now().Add(2*t.silence)
	}
	res.Body = b
	if res.StatusCode == http.StatusTooManyRequests && !t.documents {
		pauseBusy(ctx, res.Header.Get("Retry-After")) // containerd asks again at once
	}
	return res, nil
}

// isBlob reports whether a request is for a blob, or follows a redirection of one: registries
// keep blobs elsewhere. Documents are blobs, too; their readers bound them.
func isBlob(req *http.Request) bool {
	for req.Response != nil { // that caused it
		req = req.Response.Request
	}
	return path.Base(path.Dir(req.URL.Path)) == "blobs"
}

// asPlainServer makes of a connection to this machine that was closed in the TLS handshake what
// containerd takes for a server without TLS: some of them answer, and some hang up.
func asPlainServer(req *http.Request, err error) error {
	closed := errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)
	if closed && req.URL.Scheme == "https" && docker.IsLocalhost(req.URL.Host) {
		return tls.RecordHeaderError{Msg: err.Error(), RecordHeader: [5]byte([]byte("HTTP/"))}
	}
	return err
}

func pauseBusy(ctx context.Context, retryAfter string) {
	wait := 250 * time.Millisecond
	if seconds, err := strconv.Atoi(retryAfter); err == nil && seconds > 0 {
		wait = min(time.Duration(seconds)*time.Second, maxPause)
	}
	select {
	case <-ctx.Done():
	case <-time.After(wait):
	}
}

// checkRedirect follows a registry to where its blobs are, but never out of TLS, and to
// another server without the credentials: another port is another server.
func checkRedirect(r *http.Request, via []*http.Request) error {
	if len(via) > 10 {
		return errors.New("more than 10 redirections")
	}
	if r.Response.Request.URL.Scheme == "https" && r.URL.Scheme != "https" {
		return errRedirect
	}
	if r.URL.Host != via[0].URL.Host {
		r.Header.Del("Authorization")
	}
	return nil
}

// boundedBody is an answer's body that transport bounds.
type boundedBody struct {
	io.ReadCloser
	ctx     context.Context //nolint:containedctx // of the request, and as long as the body
	cancel  context.CancelCauseFunc
	silence time.Duration
	timer   *time.Timer
	until   time.Time // zero is no end
	left    int64     // bytes; only with until
}

func (b *boundedBody) Read(p []byte) (int, error) {
	wait := b.silence
	if !b.until.IsZero() {
		wait = min(wait, max(time.Until(b.until), 0))
	}
	b.timer.Reset(wait)
	n, err := b.ReadCloser.Read(p)
	b.timer.Stop() // how long the reader takes is its own affair
	if err != nil && !errors.Is(err, io.EOF) && errors.Is(context.Cause(b.ctx), errSilent) {
		err = errSilent
	}
	if !b.until.IsZero() {
		if b.left -= int64(n); b.left < 0 {
			return 0, errTooLarge
		}
	}
	return n, err
}

// Close ends the request.
func (b *boundedBody) Close() error {
	b.timer.Stop()
	err := b.ReadCloser.Close()
	b.cancel(nil)
	return err
}
