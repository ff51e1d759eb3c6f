package ledger

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"
)

// The file format. The first line is a header: what the file is, the version of
// its schema, and the checksum of every byte after that line. The rest is JSON,
// indented by us and by nobody else (an edit breaks the checksum), so that one
// lease is one block of whole lines. Blocks that didn't change are carried over
// as they are: that is quick, and it keeps fields that a newer berth of the same
// version added.
const (
	version   = 1
	maxFile   = 4 << 20
	maxHeader = 512

	kindLedger = "ledger"
	kindLease  = "lease"
)

type header struct {
	Berth   string `json:"berth"`
	Version int    `json:"version"`
	SHA256  string `json:"sha256"`
}

// state is what the ledger file holds.
type state struct {
	leases []block[Lease]
	line   []block[waiter]
}

// block is one entry of the file: the value, and its bytes there; raw is nil if
// the value is new or was changed.
type block[T any] struct {
	v   T
	raw []byte
}

// waiter is one request in the line.
type waiter struct {
	ID      string    `json:"id"`
	Request string    `json:"request"`
	Owner   Owner     `json:"owner"`
	Since   time.Time `json:"since"`
	// Arrived is Since as nanoseconds since boot; it decides about the order.
	Arrived time.Duration `json:"arrived_ns"`
	// Process stands in the line: the proof that anybody still wants the devices.
	// Cgroup, where it is, decides for those in another pid namespace.
	Process Process `json:"process"`
	Cgroup  string  `json:"cgroup"`
}

// seal puts the header before a body.
func seal(kind string, body []byte) []byte {
	sum := sha256.Sum256(body)
	out := make([]byte, 0, maxHeader+len(body))
	out = fmt.Appendf(out, `{"berth":%q,"version":%d,"sha256":"%x"}`+"\n", kind, version, sum)
	return append(out, body...)
}

// unseal checks the header and returns the body. Its errors are ErrFuture, or
// reasons to call the file corrupt.
func unseal(kind string, data []byte) ([]byte, error) {
	if len(data) == 0 {
		return nil, errors.New("the file is empty")
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("the file has more than %d bytes", maxFile)
	}
	first, body, ok := bytes.Cut(data, []byte("\n"))
	var h header
	if !ok || len(first) > maxHeader || json.Unmarshal(first, &h) != nil || h.Berth != kind || h.Version < 1 {
		return nil, errors.New("the header is missing or damaged")
	}
	if h.Version > version {
		return nil, fmt.Errorf("%w: version %d, this one knows %d", ErrFuture, h.Version, version)
	}
	if sum := sha256.Sum256(body); hex.EncodeToString(sum[:]) != h.SHA256 {
		return nil, errors.New("the checksum doesn't match: the file was cut or edited")
	}
	return body, nil
}

const (
	openLeases = "{\n  \"leases\": [\n"
	openLine   = "  ],\n  \"line\": [\n"
	closeFile  = "  ]\n}\n"
	indent     = "    "
)

func encode(s state) ([]byte, error) {
	var b bytes.Buffer
	b.WriteString(openLeases)
	if err := writeBlocks(&b, s.leases); err != nil {
		return nil, err
	}
	b.WriteString(openLine)
	if err := writeBlocks(&b, s.line); err != nil {
		return nil, err
	}
	b.WriteString(closeFile)
	if b.Len() > maxFile-maxHeader {
		return nil, fmt.Errorf("ledger would have more than %d bytes", maxFile)
	}
	return seal(kindLedger, b.Bytes()), nil
}

func writeBlocks[T any](b *bytes.Buffer, blocks []block[T]) error {
	for i, e := range blocks {
		raw := e.raw
		if raw == nil {
			var err error
			if raw, err = json.MarshalIndent(e.v, indent, "  "); err != nil {
				return fmt.Errorf("encode ledger: %w", err)
			}
		}
		b.WriteString(indent)
		b.Write(raw)
		if i < len(blocks)-1 {
			b.WriteByte(',')
		}
		b.WriteByte('\n')
	}
	return nil
}

// decoder reads ledger files. It remembers the blocks of the last one, since a
// process that waits in the line reads the same ones again and again; values
// that it returned must therefore not be changed in place.
type decoder struct {
	mu     sync.Mutex
	leases map[string]Lease
	line   map[string]waiter
}

func (d *decoder) decode(data []byte) (state, error) {
	body, err := unseal(kindLedger, data)
	if err != nil {
		return state{}, err
	}
	return d.body(body)
}

func (d *decoder) body(body []byte) (s state, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	rest, ok := bytes.CutPrefix(body, []byte(openLeases))
	if !ok {
		return state{}, errors.New("leases expected")
	}
	if s.leases, d.leases, rest, err = readBlocks(rest, d.leases, Lease.valid); err != nil {
		return state{}, err
	}
	if rest, ok = bytes.CutPrefix(rest, []byte(openLine)); !ok {
		return state{}, errors.New("line expected")
	}
	if s.line, d.line, rest, err = readBlocks(rest, d.line, waiter.valid); err != nil {
		return state{}, err
	}
	if string(rest) != closeFile {
		return state{}, errors.New("end expected")
	}
	return s, nil
}

// readBlocks reads blocks until a line that begins none, and returns what is
// left, with the values by their bytes. known are those of an earlier file.
func readBlocks[T any](b []byte, known map[string]T, valid func(T) bool) (_ []block[T], seen map[string]T, rest []byte, err error) {
	var blocks []block[T]
	seen = map[string]T{}
	for bytes.HasPrefix(b, []byte(indent+"{\n")) {
		end := bytes.Index(b, []byte("\n"+indent+"}"))
		if end < 0 {
			return nil, nil, nil, errors.New("an entry has no end")
		}
		end += len("\n" + indent + "}")
		raw := b[len(indent):end]
		v, ok := known[string(raw)]
		if !ok {
			if err := json.Unmarshal(raw, &v); err != nil {
				return nil, nil, nil, err
			}
			if !valid(v) {
				return nil, nil, nil, errors.New("an entry lacks what it needs")
			}
		}
		seen[string(raw)] = v
		blocks = append(blocks, block[T]{v, raw})
		b = b[end:]
		b = bytes.TrimPrefix(b, []byte(","))
		b = bytes.TrimPrefix(b, []byte("\n"))
	}
	return blocks, seen, b, nil
}

func (l Lease) valid() bool { return validID(l.ID) && len(l.Devices) > 0 }

func (w waiter) valid() bool { return validID(w.ID) && w.Request != "" }

// validID says that an id can be a file's name.
func validID(id string) bool {
	if len(id) != idLength {
		return false
	}
	for _, c := range []byte(id) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

func encodeLease(l Lease) ([]byte, error) {
	body, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode lease %s: %w", l.ID, err)
	}
	return seal(kindLease, append(body, '\n')), nil
}

func decodeLease(data []byte) (Lease, error) {
	body, err := unseal(kindLease, data)
	if err != nil {
		return Lease{}, err
	}
	var l Lease
	if err := json.Unmarshal(body, &l); err != nil {
		return Lease{}, err
	}
	if !l.valid() {
		return Lease{}, errors.New("the lease lacks what it needs")
	}
	return l, nil
}
