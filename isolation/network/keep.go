package network

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/netlink"
)

// Keep sets the rules anew whenever somebody takes them away, as a reload of the host's
// firewall does ("flush ruleset"), or closes the host to what is forwarded, as an engine
// does that starts. It runs until ctx ends, then it returns nil. The whole process is in
// the host's network namespace. The older half of iptables doesn't tell when it is
// changed: what is closed by it stays closed until the next gang is connected.
func Keep(ctx context.Context, o Options, n Network) error {
	err := o.keep(ctx, n)
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("keep the network of gang %s: %w", o.Gang, err)
}

// settling is how long changes are waited for that come together.
const settling = 50 * time.Millisecond

func (o Options) keep(ctx context.Context, n Network) error {
	o.Host = o.Host.complete()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l, err := netlink.Listen(ctx, unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
	if err != nil {
		return err
	}
	for { // at first, what was changed before it listened
		if err := o.persist(ctx, n); err != nil {
			return err
		}
		if err := heard(l); err != nil {
			return err
		}
		if err := wait(ctx, settling); err != nil {
			return err
		}
		if err := l.Drain(); err != nil {
			return err
		}
	}
}

// heard returns when something was told that concerns gangs.
func heard(l *netlink.Listener) error {
	for {
		told, err := l.Next()
		switch {
		case errors.Is(err, netlink.ErrMissed), slices.ContainsFunc(told, changes):
			return nil
		case err != nil:
			return err
		}
	}
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// persist sets up the host anew, more than once if others are at it at the same time.
func (o Options) persist(ctx context.Context, n Network) (err error) {
	const attempts, pause = 10, time.Second
	for range attempts {
		if err = o.again(ctx, n); err == nil || wait(ctx, pause) != nil {
			break
		}
	}
	return err
}

// changes says that a message of nf_tables is about something that gangs need: berth's
// own table, of which something went, or the chains of iptables, which something came to.
// All kinds of messages name the table first.
func changes(m netlink.Message) bool {
	if len(m.Body) < len(generic()) {
		return false
	}
	name := netlink.Text(attributesOf(m)[unix.NFTA_TABLE_NAME])
	switch m.Kind &^ (unix.NFNL_SUBSYS_NFTABLES << 8) {
	case unix.NFT_MSG_DELTABLE, unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_DELRULE:
		return name == table || name == "filter"
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_NEWRULE:
		return name == "filter" && m.Body[0] == unix.NFPROTO_IPV4
	}
	return false
}

// again has the host as it was when the gang was connected.
func (o Options) again(ctx context.Context, n Network) error {
	return locked(ctx, o.State, func() (err error) {
		here, err := dial()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, here.Close()) }()
		s, err := here.survey()
		if err != nil {
			return err
		}
		for _, l := range s.links {
			if l.name == Interface(o.Gang) {
				return o.open(s, o.pools(), n)
			}
		}
		return nil // it has no way out any more
	})
}
