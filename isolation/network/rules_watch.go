package network

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/netdev"
	"github.com/berth-gpu/berth/internal/smallfile"
)

// KeepRules sets the rules again whenever another program removes them, as a reload of the
// host's firewall does ("flush ruleset"), or has iptables drop forwarded packets, as engines
// do when they start. It runs until ctx ends, then it returns nil. The whole process has to
// be in the host's network namespace.
//
// iptables-legacy sends no events: what it drops stays dropped until the next gang is
// connected.
func KeepRules(ctx context.Context, o Options, n Network) error {
	err := o.keepRules(ctx, n)
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("keep the network of gang %s: %w", o.Gang, err)
}

// settleTime is the pause after a change, in which more changes of the same program come.
const settleTime = 50 * time.Millisecond

func (o Options) keepRules(ctx context.Context, n Network) error {
	o.Host = o.Host.withDefaults()
	changed, failed, err := o.watchHost(ctx)
	if err != nil {
		return err
	}
	for { // the first call handles changes before watchHost began
		if err := o.restoreRulesRepeatedly(ctx, n); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-failed:
			return err
		case <-changed:
		}
		if err := sleepContext(ctx, settleTime); err != nil {
			return err
		}
		select {
		case <-changed: // changes during the pause are handled by the next call
		default:
		}
	}
}

// watchHost sends to changed when nf_tables has changed in a way that concerns gangs, or
// when the gang's interface has stopped to forward, until ctx ends or an error is sent to
// failed. Changes that aren't received yet count as one.
func (o Options) watchHost(ctx context.Context) (changed <-chan struct{}, failed <-chan error, err error) {
	changes, errs := make(chan struct{}, 1), make(chan error, 2)
	err = watchMessages(ctx, unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES, concernsGangs, changes, errs)
	if err == nil {
		err = watchMessages(ctx, unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_NETCONF, o.stopsForwarding, changes, errs)
	}
	return changes, errs, err
}

// watchMessages sends to changes when a message of a netlink group concerns gangs, or when
// messages were lost.
func watchMessages(ctx context.Context, family int, group uint32, concerns func(netlink.Message) bool, changes chan<- struct{}, errs chan<- error) error {
	c, err := netlink.Dial(family, nil)
	if err != nil {
		return err
	}
	if err := c.JoinGroup(group); err != nil {
		return errors.Join(err, c.Close())
	}
	context.AfterFunc(ctx, func() { _ = c.Close() })
	go func() {
		for {
			messages, err := c.Receive()
			lost := errors.Is(err, unix.ENOBUFS)
			if err != nil && !lost {
				errs <- err
				return
			}
			if lost || slices.ContainsFunc(messages, concerns) {
				select {
				case changes <- struct{}{}:
				default:
				}
			}
		}
	}()
	return nil
}

func sleepContext(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// restoreRulesRepeatedly calls restoreRules and retries after errors, for example when another
// program changes the rules at the same time.
func (o Options) restoreRulesRepeatedly(ctx context.Context, n Network) (err error) {
	const attempts, pause = 10, time.Second
	for range attempts {
		if err = o.restoreRules(ctx, n); err == nil || sleepContext(ctx, pause) != nil {
			break
		}
	}
	return err
}

// concernsGangs reports whether a message of nf_tables is about something that gangs need:
// berth's own table, of which something was removed, or the chains of iptables, to which
// something was added or of which something was removed.
func concernsGangs(m netlink.Message) bool {
	const header = 4 // of a struct nfgenmsg, whose first byte is the family
	if len(m.Data) < header {
		return false
	}
	attributes, err := netlink.NewAttributeDecoder(m.Data[header:])
	if err != nil {
		return false
	}
	name := ""
	for attributes.Next() {
		if attributes.Type() == unix.NFTA_TABLE_NAME { // the same number in chains and rules
			name = attributes.String()
		}
	}
	switch m.Header.Type &^ (unix.NFNL_SUBSYS_NFTABLES << 8) {
	case unix.NFT_MSG_DELTABLE, unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_DELRULE:
		return name == tableName || name == "filter"
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_NEWRULE:
		return name == "filter" && m.Data[0] == unix.NFPROTO_IPV4
	}
	return false
}

// stopsForwarding reports whether a message says that ip_forward was switched off, which switches every
// interface off, or that an interface forwards no more, and the gang's own doesn't. The constants are those of
// linux/netconf.h.
func (o Options) stopsForwarding(m netlink.Message) bool {
	const (
		header         = 4 // of a struct netconfmsg, padded
		attrIfIndex    = 1
		attrForwarding = 2
		ifIndexOfAll   = -1
	)
	if len(m.Data) < header {
		return false
	}
	attributes, err := netlink.NewAttributeDecoder(m.Data[header:])
	if err != nil {
		return false
	}
	index, stops := int32(0), false
	for attributes.Next() {
		switch attributes.Type() {
		case attrIfIndex:
			index = attributes.Int32()
		case attrForwarding:
			stops = attributes.Uint32() == 0
		}
	}
	if !stops || index == ifIndexOfAll {
		return stops
	}
	on, err := smallfile.Int(filepath.Join(o.Host.Proc, "sys/net", forwardingKey(InterfaceName(o.Gang))))
	return err == nil && on == 0
}

// restoreRules sets up the host as when the gang was connected, if the gang still has a way
// out.
func (o Options) restoreRules(ctx context.Context, n Network) error {
	return withLock(ctx, o.State, func() error {
		kernel, err := netdev.OpenRoutes()
		if err != nil {
			return err
		}
		defer kernel.Close()
		host, err := readHostNetwork(kernel)
		if err != nil {
			return err
		}
		for _, l := range host.links {
			if l.Attrs().Name == InterfaceName(o.Gang) {
				return o.openHost(host, o.poolsOrDefault(), n)
			}
		}
		return nil
	})
}
