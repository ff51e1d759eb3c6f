package resolver

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/launcher/image/credentials"
	"github.com/berth-gpu/berth/launcher/image/registry"
	"github.com/berth-gpu/berth/test/images/fake"
)

func TestCheckLogin(t *testing.T) {
	for _, tt := range []struct {
		name     string
		change   func(*fake.Registry)
		password string
		checked  bool
		is       error
		says     string
	}{
		{name: "basic", change: func(r *fake.Registry) { r.Scheme = "basic" }, password: "p", checked: true},
		{name: "basic, wrong", change: func(r *fake.Registry) { r.Scheme = "basic" }, password: "x", checked: true, is: registry.ErrDenied, says: "authentication required"},
		{name: "token", password: "p", checked: true},
		{name: "token, wrong", password: "x", checked: true, is: registry.ErrDenied, says: "incorrect username or password"},
		{name: "open to all", change: func(r *fake.Registry) { r.User = "" }, password: "x"},
		{name: "busy for a while", change: func(r *fake.Registry) { r.Busy, r.Status = 2, http.StatusServiceUnavailable }, password: "p", checked: true},
		{name: "broken", change: func(r *fake.Registry) { r.Busy, r.Status = 1, http.StatusNotImplemented }, password: "p", says: "501"},
		{name: "no registry", change: func(r *fake.Registry) { r.Busy, r.Status = 1, http.StatusNotFound }, password: "p", is: registry.ErrNotFound},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, _ := serve(t)
			r.Change(func(r *fake.Registry) { r.User, r.Password = "u", "p" })
			if tt.change != nil {
				r.Change(tt.change)
			}
			checked, err := CheckLogin(t.Context(), registry.Access{}, r.Host, credentials.Login{User: "u", Secret: tt.password})
			if checked != tt.checked || tt.is != nil && !errors.Is(err, tt.is) || (err == nil) != (tt.is == nil && tt.says == "") {
				t.Errorf("checked %v, error %v; want %v, %v", checked, err, tt.checked, tt.is)
			}
			if err != nil && strings.Count(err.Error(), r.Host) != 1 {
				t.Errorf("%q doesn't name the registry once", err)
			}
			if err != nil && (!strings.Contains(err.Error(), tt.says) || strings.ContainsAny(err.Error(), "\n") || strings.Contains(err.Error(), r.Host+"/")) {
				t.Errorf("says %q, want %q and the registry's host alone", err, tt.says)
			}
		})
	}
}

// A password goes to the registry itself, never to a mirror of it.
func TestLoginPassesMirrors(t *testing.T) {
	var asked bool
	mirror := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
	defer mirror.Close()
	r, _ := serve(t)
	r.Change(func(r *fake.Registry) { r.User, r.Password = "u", "p" })
	hosts := hostDir(t, "registry.example", "hosts.toml", fmt.Sprintf("server = %q\n[host.%q]", "http://"+r.Host, mirror.URL))
	checked, err := CheckLogin(t.Context(), registry.Access{HostDirs: []string{hosts}}, "registry.example", credentials.Login{User: "u", Secret: "p"})
	if !checked || err != nil || asked {
		t.Errorf("checked %v, %v; the mirror was asked: %v", checked, err, asked)
	}
}
