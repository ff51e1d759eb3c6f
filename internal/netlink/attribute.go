package netlink

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/sys/unix"
)

func align(n int) int { return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }

// kindOf are the bits of an attribute's type; the others are flags.
const kindOf = ^uint16(unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)

// Attributes reads type, length and value of each. What doesn't fit ends the list.
func Attributes(data []byte) map[uint16][]byte {
	all := map[uint16][]byte{}
	for len(data) >= unix.SizeofRtAttr {
		length := int(binary.NativeEndian.Uint16(data))
		if length < unix.SizeofRtAttr || length > len(data) {
			break
		}
		all[binary.NativeEndian.Uint16(data[2:])&kindOf] = data[unix.SizeofRtAttr:length]
		data = data[min(align(length), len(data)):]
	}
	return all
}

// Append appends an attribute.
func Append(data []byte, kind uint16, value []byte) []byte {
	length := unix.SizeofRtAttr + len(value)
	data = binary.NativeEndian.AppendUint16(data, uint16(length))
	data = binary.NativeEndian.AppendUint16(data, kind)
	data = append(data, value...)
	return append(data, make([]byte, align(length)-length)...)
}

// AppendNested appends an attribute whose value is attributes.
func AppendNested(data []byte, kind uint16, value []byte) []byte {
	return Append(data, kind|unix.NLA_F_NESTED, value)
}

// AppendText appends a name, with its NUL.
func AppendText(data []byte, kind uint16, text string) []byte {
	return Append(data, kind, append([]byte(text), 0))
}

// AppendUint32 appends a number in the machine's order.
func AppendUint32(data []byte, kind uint16, n uint32) []byte {
	return Append(data, kind, binary.NativeEndian.AppendUint32(nil, n))
}

// Uint32 is a value of four bytes; ok is false for another.
func Uint32(value []byte) (n uint32, ok bool) {
	if len(value) != 4 {
		return 0, false
	}
	return binary.NativeEndian.Uint32(value), true
}

// Text is a value that ends with NUL.
func Text(value []byte) string {
	value, _, _ = bytes.Cut(value, []byte{0})
	return string(value)
}
