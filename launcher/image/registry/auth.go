package registry

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// challenge is one way that a registry wants to be shown who asks.
type challenge struct {
	scheme string // in lower case
	params map[string]string
}

// challenges reads WWW-Authenticate headers (RFC 9110, section 11.6.1). What it
// can't read it leaves out.
func challenges(headers []string) (all []challenge) {
	for _, h := range headers {
		scheme, rest, _ := strings.Cut(strings.TrimSpace(h), " ")
		c := challenge{strings.ToLower(scheme), map[string]string{}}
		for rest != "" {
			var key, value string
			key, rest, _ = strings.Cut(rest, "=")
			value, rest = parameter(rest)
			c.params[strings.ToLower(strings.Trim(key, " ,\t"))] = value
		}
		all = append(all, c)
	}
	return all
}

// parameter takes a token or a quoted string off the beginning.
func parameter(text string) (value, rest string) {
	if !strings.HasPrefix(text, `"`) {
		value, rest, _ = strings.Cut(text, ",")
		return strings.TrimSpace(value), rest
	}
	var b strings.Builder
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '"':
			_, rest, _ = strings.Cut(text[i+1:], ",")
			return b.String(), rest
		case '\\':
			if i++; i < len(text) {
				b.WriteByte(text[i])
			}
		default:
			b.WriteByte(text[i])
		}
	}
	return b.String(), ""
}

// authorise answers a challenge: it returns the Authorization header for the next
// request, or "" if there is nothing to answer with. Requests that were refused at
// the same time share one answer.
func (r *Repository) authorise(ctx context.Context, used string, headers []string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.authority != used {
		return r.authority, nil // somebody else was faster
	}
	login, err := r.access.login(ctx, r.name)
	if err != nil {
		return "", err
	}
	for _, c := range challenges(headers) {
		switch {
		case c.scheme == "bearer":
			token, err := r.token(ctx, c, login)
			if err != nil {
				return "", err
			}
			r.authority = "Bearer " + token
		case c.scheme == "basic" && login.user != "":
			r.authority = basic(login)
		default:
			continue
		}
		break
	}
	return r.authority, nil
}

func basic(l login) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(l.user+":"+l.secret))
}

// token asks the registry's token server for the right to pull.
func (r *Repository) token(ctx context.Context, c challenge, l login) (string, error) {
	realm, err := url.Parse(c.params["realm"])
	if err != nil || realm.Host == "" {
		return "", fmt.Errorf("registry %s: it asks for a token of %q, which is no address", r.name.Host, printable(c.params["realm"]))
	}
	if realm.Scheme != "https" && (!r.plain || realm.Scheme != "http") {
		return "", fmt.Errorf("registry %s: it asks for a token of %s, without TLS", r.name.Host, printable(realm.Host))
	}
	req, err := r.tokenRequest(ctx, realm, c, l)
	if err != nil {
		return "", err
	}
	r.introduce(req)
	res, err := r.do(req)
	if err != nil {
		return "", err
	}
	if res.StatusCode != http.StatusOK {
		return "", r.refused(res)
	}
	defer res.Body.Close()
	var answer struct {
		Token  string `json:"token"`
		Access string `json:"access_token"`
	}
	if err := json.NewDecoder(io.LimitReader(r.soon(res.Body), maxToken)).Decode(&answer); err != nil {
		return "", fmt.Errorf("registry %s: read its token: %w", r.name.Host, err)
	}
	if answer.Token == "" {
		answer.Token = answer.Access
	}
	if answer.Token == "" {
		return "", fmt.Errorf("registry %s: its token server gives no token", r.name.Host)
	}
	return answer.Token, nil
}

// tokenRequest is a GET with name and password, or a POST with an identity token
// that a login has left (the registry specification's two ways).
func (r *Repository) tokenRequest(ctx context.Context, realm *url.URL, c challenge, l login) (*http.Request, error) {
	scope := "repository:" + r.name.Repository + ":pull"
	if l.identity != "" {
		form := url.Values{
			"grant_type": {"refresh_token"}, "service": {c.params["service"]}, "client_id": {"berth"},
			"scope": {scope}, "refresh_token": {l.identity},
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, realm.String(), strings.NewReader(form.Encode()))
		if err == nil {
			req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}
		return req, err
	}
	query := realm.Query()
	if service := c.params["service"]; service != "" {
		query.Set("service", service)
	}
	query.Set("scope", scope)
	realm.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, realm.String(), nil)
	if err == nil && l.user != "" {
		req.Header.Set("Authorization", basic(l))
	}
	return req, err
}
