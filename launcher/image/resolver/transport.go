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

// Limits for answers of registries.
const (
	maxSilence  = time.Minute // without a byte, before or within an answer
	maxDocument = 16 << 20    // bytes of an answer that is no blob
	maxPause    = time.Minute // before the next request after 429 Too Many Requests
)

var (
	errSilent       = errors.New("the registry has fallen silent")
	errTooLarge     = fmt.Errorf("the answer is larger than %d bytes", maxDocument)
	errRedirect     = errors.New("redirected from https to http")
	errTokenInPlain = errors.New("the registry asks for a token of a server without TLS")
)

// transport bounds answers. A body may pause for at most silence. A body that is no blob also has to end within
// twice that time and within maxDocument bytes.
type transport struct {
	http.RoundTripper
	silence time.Duration
	// documents means that no answer is a blob, whatever its path.
	documents bool
	// files means that each answer may be a blob, whatever its path.
	files bool
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
	b.timer.Stop() // Read starts it
	if t.documents || res.StatusCode >= 300 || !t.files && !isBlob(req) {
		b.left, b.until = maxDocument, time.Now().Add(2*t.silence)
	}
	res.Body = b
	if res.StatusCode == http.StatusTooManyRequests && !t.documents {
		pauseBusy(ctx, res.Header.Get("Retry-After")) // containerd repeats the request at once
	}
	return res, nil
}

// isBlob reports whether a request is for a blob, or follows a redirect of such a request: registries redirect
// to other servers. Documents can be requested as blobs too; their readers bound them.
func isBlob(req *http.Request) bool {
	for req.Response != nil { // the redirect that caused this request
		req = req.Response.Request
	}
	return path.Base(path.Dir(req.URL.Path)) == "blobs"
}

// asPlainServer converts the error of a connection to this machine that was closed in the TLS handshake into
// the error by which containerd recognises a server without TLS: some such servers answer, and some close the
// connection.
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

// checkRedirect allows redirects, but not from TLS to plain HTTP, and removes the credentials for another
// server. Another port is another server.
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

// boundedBody is the body of an answer, bounded by transport.
type boundedBody struct {
	io.ReadCloser
	ctx     context.Context //nolint:containedctx // the request's, which lives as long as the body
	cancel  context.CancelCauseFunc
	silence time.Duration
	timer   *time.Timer
	until   time.Time // zero for no limit
	left    int64     // bytes; ignored if until is zero
}

func (b *boundedBody) Read(p []byte) (int, error) {
	wait := b.silence
	if !b.until.IsZero() {
		wait = min(wait, max(time.Until(b.until), 0))
	}
	b.timer.Reset(wait)
	n, err := b.ReadCloser.Read(p)
	b.timer.Stop() // the time between two reads doesn't count
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
