// Package attach is the protocol between a task's monitor and its attached clients over a Unix
// socket: frames of a kind, a length and as many bytes.
//
//	client → monitor   stdin, resize, signal
//	monitor → client   stdout, stderr, behind, exit
//
// Only root reaches the socket, and so neither side protects itself from the other
// beyond the limit on a frame.
package attach

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Kind of a frame.
type Kind byte

// Kinds of frames.
const (
	Stdout Kind = 1 // what the task writes
	Stderr Kind = 2
	Stdin  Kind = 3 // what it reads
	Resize Kind = 4 // rows and columns of its terminal, 16 bits each
	Signal Kind = 5 // a signal's number, one byte
	Behind Kind = 6 // the client reads too slowly, and gets no more
	Exit   Kind = 7 // the task has ended; its exit code, one byte
	Quiet  Kind = 8 // the client wants to hear of the end alone
	Ended  Kind = 9 // the client asks how a gang ended; it is told when it has, or at once
)

// Max is how long a frame's data can be.
const Max = 64 << 10

const header = 5

var errTooLong = errors.New("frame is too long")

// Append adds a frame to b.
func Append(b []byte, k Kind, data []byte) []byte {
	b = append(b, byte(k))
	b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
	return append(b, data...)
}

// Write writes one frame in one call; data that is longer than Max becomes several.
func Write(w io.Writer, k Kind, data []byte) error {
	for {
		n := min(len(data), Max)
		if _, err := w.Write(Append(make([]byte, 0, header+n), k, data[:n])); err != nil {
			return err
		}
		if data = data[n:]; len(data) == 0 {
			return nil
		}
	}
}

// Read reads one frame; its data is in buf, which must have room for Max bytes. The
// error is io.EOF where the other side ended between two frames.
func Read(r io.Reader, buf []byte) (Kind, []byte, error) {
	var h [header]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(h[1:])
	if n > Max || int(n) > len(buf) {
		return 0, nil, fmt.Errorf("read frame of %d bytes: %w", n, errTooLong)
	}
	if _, err := io.ReadFull(r, buf[:n]); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return Kind(h[0]), buf[:n], nil
}
