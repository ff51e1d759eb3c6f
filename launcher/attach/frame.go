// Package attach implements the protocol between a task's monitor and its attached clients over a Unix
// socket. A frame has a kind, a length and the data.
//
//	client → monitor   stdin, resize, signal
//	monitor → client   stdout, stderr, behind, exit
//
// Only root can connect to the socket, so both sides trust each other except for the length of a frame.
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
	Stdout Kind = 1 // output of the task
	Stderr Kind = 2
	Stdin  Kind = 3 // input of the task
	Resize Kind = 4 // rows and columns of the client's terminal, 16 bits each
	Signal Kind = 5 // a signal's number, one byte
	Behind Kind = 6 // the client reads too slowly and is disconnected
	Exit   Kind = 7 // the task has ended; its exit code, one byte
	Quiet  Kind = 8 // the client wants no output, only Exit
	Ended  Kind = 9 // the client wants Exit of a gang as soon as the gang has ended
)

// Max is the maximum length of a frame's data in bytes.
const Max = 64 << 10

const header = 5

var errTooLong = errors.New("frame is too long")

// Append adds a frame to b.
func Append(b []byte, k Kind, data []byte) []byte {
	b = append(b, byte(k))
	b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
	return append(b, data...)
}

// Write writes a frame with one call of w.Write. Data that is longer than Max becomes several frames.
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

// Read reads a frame. The data is in buf, which must have a length of Max at least. The error is io.EOF
// if the other side has closed the connection between two frames.
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
