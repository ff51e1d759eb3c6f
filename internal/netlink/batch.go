package netlink

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// Begin and end of a batch (linux/netfilter/nfnetlink.h, NFNL_MSG_BATCH_BEGIN).
const (
	batchBegin = 0x10
	batchEnd   = 0x11
)

// Batch has a subsystem of nfnetlink carry out all requests, or none. Nothing else may
// have been asked on this socket, and nothing may be asked after an error.
func (c *Conn) Batch(subsystem uint16, requests []Message) error {
	if len(requests) == 0 {
		return nil
	}
	frame := binary.BigEndian.AppendUint16([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0}, subsystem)
	c.sequence++
	first := c.sequence
	data := c.append(nil, Message{batchBegin, unix.NLM_F_REQUEST, frame}, c.sequence)
	for _, m := range requests {
		c.sequence++
		m.Kind |= subsystem << 8
		m.Flags |= unix.NLM_F_REQUEST | unix.NLM_F_ACK
		data = c.append(data, m, c.sequence)
	}
	data = c.append(data, Message{batchEnd, unix.NLM_F_REQUEST, frame}, c.sequence+1)
	if err := c.send(data); err != nil {
		return err
	}
	buf := make([]byte, 1<<16)
	for {
		data, err := c.receive(buf)
		if err != nil {
			return err
		}
		if done, err := c.judged(data, first); done || err != nil {
			return err
		}
	}
}

// judged reads verdicts: done with the last request's, or the first error.
func (c *Conn) judged(data []byte, first uint32) (done bool, err error) {
	for len(data) >= unix.SizeofNlMsghdr {
		m, sequence, rest, err := next(data)
		if err != nil {
			return false, err
		}
		data = rest
		if m.Kind != unix.NLMSG_ERROR {
			continue
		}
		err = verdict(m)
		switch {
		case err == nil && sequence == first:
		case err != nil && sequence > first:
			return false, fmt.Errorf("request %d of %d: %w", sequence-first, c.sequence-first, err)
		case err != nil:
			return false, err
		case sequence == c.sequence:
			return true, nil
		}
	}
	return false, nil
}
