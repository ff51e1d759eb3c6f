package network

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/internal/netlink"
)

// Numbers of linux/netfilter/nfnetlink_conntrack.h.
const (
	conntrackDelete = 2  // IPCTNL_MSG_CT_DELETE
	tupleOriginal   = 1  // CTA_TUPLE_ORIG
	tupleIP         = 1  // CTA_TUPLE_IP
	sourceIPv4      = 1  // CTA_IP_V4_SRC
	filterOf        = 25 // CTA_FILTER
	filterOriginal  = 1  // CTA_FILTER_ORIG_FLAGS
	filterReply     = 2  // CTA_FILTER_REPLY_FLAGS
	bySource        = 1  // CTA_FILTER_F_CTA_IP_SRC
)

// forget drops the connections of whoever had this address before, or their packets
// would come to the next that has it. Kernels that can't be asked for one address alone
// forget nothing: the search for subnets begins elsewhere for each gang.
func forget(address netip.Addr) (err error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER)
	if err != nil {
		return firewallError("ask for connections", err)
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	ip := address.As4()
	b := []byte{unix.AF_INET, unix.NFNETLINK_V0 + 1, 0, 0} // version 1: of this family alone
	b = netlink.AppendNested(b, tupleOriginal, netlink.AppendNested(nil, tupleIP, netlink.Append(nil, sourceIPv4, ip[:])))
	b = netlink.AppendNested(b, filterOf, netlink.AppendUint32(netlink.AppendUint32(nil, filterOriginal, bySource), filterReply, 0))
	_, err = c.Ask(unix.NFNL_SUBSYS_CTNETLINK<<8|conntrackDelete, 0, b)
	for _, can := range []error{unix.EINVAL, unix.EOPNOTSUPP, unix.ENOENT, unix.ERANGE} {
		if errors.Is(err, can) {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("forget the connections of %s: %w", address, err)
	}
	return nil
}
