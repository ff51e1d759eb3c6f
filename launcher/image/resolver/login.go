package resolver

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"

	"github.com/berth-gpu/berth/launcher/image/credentials"
	"github.com/berth-gpu/berth/launcher/image/registry"
)

// CheckLogin checks an account at a registry, never at a mirror. checked is false if the registry accepts
// requests without an account. The error Is registry.ErrDenied if the registry refuses the account.
func CheckLogin(ctx context.Context, a registry.Access, host string, l credentials.Login) (checked bool, err error) {
	r := &Repository{name: registry.Name{Host: host}}
	hosts, err := configureHosts(ctx, a, r.name, maxSilence)
	if err != nil {
		return false, err
	}
	h := hosts[len(hosts)-1] // mirrors are before it
	err = r.askAgain(ctx, func(ctx context.Context) error {
		h.Authorizer = newAuthorizer(a, h, maxSilence, func() (credentials.Login, error) { return l, nil })
		checked = false
		res, err := ping(ctx, a, h)
		if err == nil && res.StatusCode == http.StatusUnauthorized {
			checked = true
			if err = errors.Join(h.Authorizer.AddResponses(ctx, []*http.Response{res}), res.Body.Close()); err == nil {
				res, err = ping(ctx, a, h)
			}
		}
		if err == nil && res.StatusCode != http.StatusOK {
			err = remoteerrors.NewUnexpectedStatusErr(res)
		}
		if res != nil {
			_ = res.Body.Close() // the rest of the body isn't needed
		}
		return err
	})
	return checked, err
}

// ping requests the base path of the API, which every registry has.
func ping(ctx context.Context, a registry.Access, h docker.RegistryHost) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s://%s%s/", h.Scheme, h.Host, h.Path), nil)
	if err != nil {
		return nil, err
	}
	req.Header = userAgent(a)
	for key, values := range h.Header {
		req.Header[key] = append(req.Header[key], values...)
	}
	if err := h.Authorizer.Authorize(ctx, req); err != nil {
		return nil, err
	}
	return h.Client.Do(req)
}
