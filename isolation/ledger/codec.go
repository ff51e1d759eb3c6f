package ledger

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strconv"
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
	// reaped is when the dead were last looked for, since boot.
	reaped time.Duration
	leases []record
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

// begin is the header of a file of about so many bytes. Its checksum is filled in by finish.
func begin(kind string, size int) []byte {
	b := make([]byte, 0, len(headBegin)+len(kind)+len(headSum)+len(noSum)+len(headEnd)+size)
	b = append(append(b, headBegin...), kind...)
	return append(append(append(b, headSum...), noSum...), headEnd...)
}

// finish fills in the checksum of a file that begin began, when its body is there.
func finish(kind string, file []byte) []byte {
	at := len(headBegin) + len(kind) + len(headSum)
	sum := sha256.Sum256(file[at+len(noSum)+len(headEnd):])
	hex.Encode(file[at:], sum[:])
	return file
}

// The header's parts as this version writes them.
const (
	headBegin = `{"berth":"`
	headSum   = `","version":1,"sha256":"`
	headEnd   = "\"}\n"
	noSum     = "0000000000000000000000000000000000000000000000000000000000000000"
)

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
	if !ok || len(first) > maxHeader {
		return nil, errHeader
	}
	claimed, err := readHeader(kind, first)
	if err != nil {
		return nil, err
	}
	var is [len(noSum)]byte
	sum := sha256.Sum256(body)
	hex.Encode(is[:], sum[:])
	if string(is[:]) != claimed {
		return nil, errors.New("the checksum doesn't match: the file was cut or edited")
	}
	return body, nil
}

var errHeader = errors.New("the header is missing or damaged")

// readHeader returns the checksum.
func readHeader(kind string, line []byte) (string, error) {
	before := len(headBegin) + len(kind) + len(headSum)
	if len(line) == before+len(noSum)+len(headEnd)-1 && string(line[:before]) == headBegin+kind+headSum {
		return string(line[before : before+len(noSum)]), nil
	}
	var h header
	if json.Unmarshal(line, &h) != nil || h.Berth != kind || h.Version < 1 {
		return "", errHeader
	}
	if h.Version > version {
		return "", fmt.Errorf("%w: version %d, this one knows %d", ErrFuture, h.Version, version)
	}
	return h.SHA256, nil
}

const (
	openFormat = "{\n  \"reaped_ns\": "
	openLeases = ",\n  \"leases\": [\n"
	openLine   = "  ],\n  \"line\": [\n"
	closeFile  = "  ]\n}\n"
	indent     = "    "
)

func encode(s state) ([]byte, error) {
	size := 2 * maxHeader // about; it saves copying
	for _, r := range s.leases {
		size += max(len(r.raw), 2*maxHeader)
	}
	for _, w := range s.line {
		size += max(len(w.raw), 2*maxHeader)
	}
	t := text{b: begin(kindLedger, size), indent: indent}
	t.b = strconv.AppendInt(append(t.b, openFormat...), int64(s.reaped), 10)
	t.b = append(t.b, openLeases...)
	for i, r := range s.leases {
		t.entry(r.raw, i == len(s.leases)-1, func() { t.lease(r.v) })
	}
	t.b = append(t.b, openLine...)
	for i, w := range s.line {
		t.entry(w.raw, i == len(s.line)-1, func() { t.waiter(w.v) })
	}
	t.b = append(t.b, closeFile...)
	if t.err != nil {
		return nil, fmt.Errorf("encode ledger: %w", t.err)
	}
	if len(t.b) > maxFile {
		return nil, fmt.Errorf("ledger would have more than %d bytes", maxFile)
	}
	return finish(kindLedger, t.b), nil
}

// entry writes the bytes that an entry had, or makes them if it is new or changed.
func (t *text) entry(raw []byte, last bool, make func()) {
	t.b = append(t.b, indent...)
	if raw == nil {
		t.filled = false
		make()
	} else {
		t.b = append(t.b, raw...)
	}
	if !last {
		t.b = append(t.b, ',')
	}
	t.b = append(t.b, '\n')
}

// decoder reads ledger files. It remembers the entries that it has read, since a
// process that waits in the line reads the same ones again and again; values that
// it returned must therefore not be changed in place.
type decoder struct {
	mu     sync.Mutex
	leases map[string]*Lease
	line   map[string]waiter
}

// skim reads a file, of the leases only what a record holds at once.
func (d *decoder) skim(data []byte) (state, error) {
	body, err := unseal(kindLedger, data)
	if err != nil {
		return state{}, err
	}
	return d.body(body)
}

func (d *decoder) body(body []byte) (s state, err error) {
	rest, ok := bytes.CutPrefix(body, []byte(openFormat))
	stamp, rest, found := bytes.Cut(rest, []byte(openLeases))
	ns, err := strconv.ParseInt(string(stamp), 10, 64)
	if !ok || !found || err != nil {
		return state{}, errors.New("leases expected")
	}
	s.reaped = time.Duration(ns)
	for raw := range entries(&rest) {
		r, err := peek(raw)
		if err != nil {
			return state{}, err
		}
		s.leases = append(s.leases, r)
	}
	if rest, ok = bytes.CutPrefix(rest, []byte(openLine)); !ok {
		return state{}, errors.New("line expected")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for raw := range entries(&rest) {
		w, err := remember(&d.line, raw, parseWaiter, waiter.valid)
		if err != nil {
			return state{}, err
		}
		s.line = append(s.line, block[waiter]{w, raw})
	}
	if string(rest) != closeFile {
		return state{}, errors.New("end expected")
	}
	return s, nil
}

// fill reads what skim left out.
func (d *decoder) fill(s *state) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range s.leases {
		if r := &s.leases[i]; r.v == nil {
			var err error
			if r.v, err = remember(&d.leases, r.raw, parseLease, (*Lease).valid); err != nil {
				return err
			}
		}
	}
	return nil
}

// entries yields entries until a line that begins none, and moves rest there. What
// has no end is left in rest.
func entries(rest *[]byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for bytes.HasPrefix(*rest, []byte(indent+"{\n")) {
			end := bytes.Index(*rest, []byte("\n"+indent+"}"))
			if end < 0 {
				return
			}
			end += len("\n" + indent + "}")
			raw := (*rest)[len(indent):end]
			*rest = bytes.TrimPrefix(bytes.TrimPrefix((*rest)[end:], []byte(",")), []byte("\n"))
			if !yield(raw) {
				return
			}
		}
	}
}

var errIncomplete = errors.New("an entry lacks what it needs")

// remember returns the value of an entry, from memory if it was read before.
func remember[T any](known *map[string]T, raw []byte, parse func([]byte, string) (T, bool), valid func(T) bool) (v T, err error) {
	v, ok := (*known)[string(raw)]
	if ok {
		return v, nil
	}
	if v, ok = parse(raw, indent); !ok {
		v = *new(T)
		err = json.Unmarshal(raw, &v)
	}
	if err != nil {
		return v, err
	}
	if !valid(v) {
		return v, errIncomplete
	}
	const enough = 1000
	if *known == nil || len(*known) >= enough {
		*known = map[string]T{}
	}
	(*known)[string(raw)] = v
	return v, nil
}

func (l *Lease) valid() bool { return validID(l.ID) && len(l.Devices) > 0 }

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
	t := text{b: begin(kindLease, 2*maxHeader)}
	t.lease(&l)
	if t.err != nil {
		return nil, fmt.Errorf("encode lease %s: %w", l.ID, t.err)
	}
	return finish(kindLease, append(t.b, '\n')), nil
}

func decodeLease(data []byte) (Lease, error) {
	body, err := unseal(kindLease, data)
	if err != nil {
		return Lease{}, err
	}
	l, ok := parseLease(bytes.TrimSuffix(body, []byte("\n")), "")
	if !ok {
		l = new(Lease)
		err = json.Unmarshal(body, l)
	}
	if err != nil {
		return Lease{}, err
	}
	if !l.valid() {
		return Lease{}, errors.New("the lease lacks what it needs")
	}
	return *l, nil
}
