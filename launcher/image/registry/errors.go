package registry

import (
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Errors that callers branch on. All others of a pull are about the connection.
var (
	// ErrDenied: the registry wants other credentials, or has no such repository
	// and doesn't say so to strangers.
	ErrDenied = errors.New("access denied")
	// ErrNotFound: the registry has no such repository, tag or blob.
	ErrNotFound = errors.New("not found")
	// ErrPlain: the registry speaks HTTP without TLS.
	ErrPlain = errors.New("doesn't speak TLS")
	// ErrCertificate: the registry's certificate can't be trusted.
	ErrCertificate = errors.New("certificate isn't trusted")
	// ErrUnknownHost: there is no such registry.
	ErrUnknownHost = errors.New("no such host")
	// ErrRange: the registry can't begin in the middle of a blob.
	ErrRange = errors.New("registry can't go on")
)

// refusal is an answer that isn't what was asked for.
type refusal struct {
	status int
	text   string
	after  time.Duration
}

func (r *refusal) Error() string { return r.text }

// Is says what kind of refusal it is.
func (r *refusal) Is(target error) bool {
	switch target {
	case ErrDenied:
		return r.status == http.StatusUnauthorized || r.status == http.StatusForbidden
	case ErrNotFound:
		return r.status == http.StatusNotFound
	case ErrRange:
		return r.status == http.StatusRequestedRangeNotSatisfiable
	}
	return false
}

// refused reads what a registry says, and closes the answer.
func (r *Repository) refused(res *http.Response) error {
	defer res.Body.Close()
	var said struct {
		Errors []struct{ Code, Message string } `json:"errors"`
	}
	data, err := io.ReadAll(io.LimitReader(r.soon(res.Body), maxError))
	text := http.StatusText(res.StatusCode)
	if err == nil && json.Unmarshal(data, &said) == nil && len(said.Errors) > 0 {
		if text = said.Errors[0].Message; text == "" {
			text = said.Errors[0].Code
		}
	}
	seconds, err := strconv.Atoi(res.Header.Get("Retry-After"))
	if err != nil {
		seconds = 0
	}
	after := min(time.Duration(max(seconds, 0))*time.Second, maxWait)
	return &refusal{res.StatusCode, fmt.Sprintf("the registry says %d: %s", res.StatusCode, printable(text)), after}
}

// printable makes one short line of what strangers say.
func printable(text string) string {
	text = strings.Map(func(c rune) rune {
		if unicode.IsSpace(c) {
			return ' '
		}
		if !unicode.IsPrint(c) {
			return -1
		}
		return c
	}, text)
	if len(text) > 200 {
		text = strings.ToValidUTF8(text[:200], "") + "…"
	}
	return strings.TrimSpace(text)
}

// retry says how long to wait before the next attempt, if there is to be one.
func retry(err error, attempt int) (time.Duration, bool) {
	wait := 250 * time.Millisecond << min(attempt, 6)
	var said *refusal
	if errors.As(err, &said) {
		switch said.status {
		case http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway,
			http.StatusServiceUnavailable, http.StatusGatewayTimeout, http.StatusRequestTimeout:
			return max(wait, said.after), attempt < attempts
		}
		return 0, false
	}
	var dns *net.DNSError
	var refused *net.OpError
	switch {
	case errors.As(err, &dns):
		return wait, dns.IsTemporary && attempt < attempts
	case errors.As(err, &refused) && refused.Op == "dial":
		return wait, attempt < 2
	case errors.Is(err, http.ErrSchemeMismatch), certificate(err) != "":
		return 0, false
	}
	return wait, attempt < attempts
}

// explain says in one line what was in the way.
func (r *Repository) explain(err error) error {
	var said *refusal
	var dns *net.DNSError
	switch why := certificate(err); {
	case errors.As(err, &said):
		if errors.Is(err, ErrDenied) {
			return fmt.Errorf("%w to %s: %w", ErrDenied, r.where(), err)
		}
		return err
	case errors.Is(err, http.ErrSchemeMismatch):
		return fmt.Errorf("registry %s %w", r.name.Host, ErrPlain)
	case why != "":
		return fmt.Errorf("%w of registry %s: %s", ErrCertificate, r.name.Host, why)
	case errors.As(err, &dns) && dns.IsNotFound:
		return fmt.Errorf("registry %s: %w as %s", r.name.Host, ErrUnknownHost, dns.Name)
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err // the rest is an address that nobody typed
	}
	return fmt.Errorf("reach registry %s: %w", r.name.Host, err)
}

func (r *Repository) where() string { return r.name.Host + "/" + r.name.Repository }

// certificate says why a certificate was not accepted, "" if it isn't about one.
func certificate(err error) string {
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &unknown):
		return unknown.Error()
	case errors.As(err, &name):
		return name.Error()
	case errors.As(err, &invalid):
		return invalid.Error()
	}
	return ""
}
