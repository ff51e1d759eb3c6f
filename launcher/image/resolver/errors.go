package resolver

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/errdefs"

	"github.com/berth-gpu/berth/internal/printable"
	"github.com/berth-gpu/berth/launcher/image/registry"
)

// explainError returns an error of one line. containerd's errors describe each step, with addresses that the
// user doesn't know.
func (r *Repository) explainError(err error) error {
	var said remoteerrors.ErrUnexpectedStatus
	var dns *net.DNSError
	var request *url.Error
	var dial *net.OpError
	host := r.name.Host
	if errors.As(err, &request) { // the host may be a mirror
		host = hostOf(request.URL, host)
	} else if errors.As(err, &said) {
		host = hostOf(said.RequestURL, host)
	}
	certificate := certificateProblem(err)
	switch {
	case r.name.Repository == "" && isDenied(err, said.StatusCode): // a login, which has no repository
		return fmt.Errorf("%w by registry %s%s", registry.ErrDenied, host, registryMessage(said))
	case errors.Is(err, docker.ErrInvalidAuthorization), said.StatusCode == http.StatusUnauthorized:
		return fmt.Errorf("%w to %s: registry %s asks for other credentials%s", registry.ErrDenied, r.fullRepository(), host, registryMessage(said))
	case said.StatusCode == http.StatusForbidden:
		return fmt.Errorf("%w to %s: registry %s says 403%s", registry.ErrDenied, r.fullRepository(), host, registryMessage(said))
	case errdefs.IsNotFound(err), said.StatusCode == http.StatusNotFound:
		return fmt.Errorf("%w in registry %s%s", registry.ErrNotFound, host, registryMessage(said))
	case said.StatusCode != 0:
		return fmt.Errorf("registry %s says %d%s", host, said.StatusCode, registryMessage(said))
	case errors.Is(err, http.ErrSchemeMismatch), errors.As(err, new(tls.RecordHeaderError)):
		return fmt.Errorf("registry %s %w", host, registry.ErrPlain)
	case certificate != "":
		return fmt.Errorf("%w of registry %s: %s", registry.ErrCertificate, host, certificate)
	case errors.As(err, &dns) && dns.IsNotFound:
		if name, _, _ := strings.Cut(host, ":"); name == dns.Name {
			return fmt.Errorf("registry %s: %w", host, registry.ErrUnknownHost)
		}
		return fmt.Errorf("registry %s: %w as %s", host, registry.ErrUnknownHost, dns.Name)
	case errors.As(err, &dial) && dial.Op == "dial":
		where := ""
		if dial.Addr != nil && dial.Addr.String() != host {
			where = " at " + dial.Addr.String()
		}
		return fmt.Errorf("registry %s %w%s: %w", host, registry.ErrUnreachable, where, dial.Err)
	case request != nil:
		err = request.Err
	}
	return fmt.Errorf("reach registry %s: %w", host, err)
}

// isDenied reports whether a registry refuses the credentials.
func isDenied(err error, status int) bool {
	return errors.Is(err, docker.ErrInvalidAuthorization) || status == http.StatusUnauthorized || status == http.StatusForbidden
}

func hostOf(address, otherwise string) string {
	if u, err := url.Parse(address); err == nil && u.Host != "" {
		return u.Host
	}
	return otherwise
}

// registryMessage returns the message in a registry's answer as the end of a sentence, or "".
func registryMessage(s remoteerrors.ErrUnexpectedStatus) string {
	var said struct {
		Errors []struct{ Code, Message string } `json:"errors"`
	}
	text := http.StatusText(s.StatusCode)
	if json.Unmarshal(s.Body, &said) == nil && len(said.Errors) > 0 {
		if text = said.Errors[0].Message; text == "" {
			text = said.Errors[0].Code
		}
	}
	if text == "" {
		return ""
	}
	return ": " + makePrintable(text)
}

// makePrintable returns untrusted text as one short line.
func makePrintable(text string) string {
	if text = printable.Line(text); len(text) > 200 {
		text = strings.ToValidUTF8(text[:200], "") + "…"
	}
	return text
}

// certificateProblem returns why a certificate was not accepted, "" for other errors.
func certificateProblem(err error) string {
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
