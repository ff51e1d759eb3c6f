package main

import (
	"context"

	"github.com/berth-gpu/berth/launcher/engine"
	"github.com/berth-gpu/berth/launcher/image/credentials"
	"github.com/berth-gpu/berth/launcher/image/registry"
	"github.com/berth-gpu/berth/launcher/image/resolver"
)

// logIn has a registry check an account and stores it. Without a user it checks the stored
// account and changes nothing.
func logIn(ctx context.Context, a registry.Access, in engine.Login) (r engine.LoggedIn, err error) {
	name := registry.Name{Host: in.Host}
	account := credentials.Login{User: in.User, Secret: in.Password}
	kept := in.User == ""
	if kept {
		if account, r.First, err = credentials.Find(ctx, a.Credentials, name); err != nil {
			return r, err
		}
		if r.Found = r.First != ""; !r.Found {
			return r, nil
		}
	}
	checked, err := resolver.CheckLogin(ctx, a, in.Host, account)
	if r.Unchecked = !checked; err != nil || kept {
		return r, err
	}
	if r.Helper, err = credentials.Store(ctx, a.LoginFile, in.Host, account); err != nil {
		return r, err
	}
	_, r.First, err = credentials.Find(ctx, a.Credentials, name)
	return r, err
}

// logOut removes a stored account.
func logOut(ctx context.Context, a registry.Access, host string) (r engine.LoggedIn, err error) {
	if r.Found, err = credentials.Erase(ctx, a.LoginFile, host); err != nil {
		return r, err
	}
	_, r.First, err = credentials.Find(ctx, a.Credentials, registry.Name{Host: host})
	return r, err
}
