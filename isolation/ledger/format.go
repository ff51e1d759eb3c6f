package ledger

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/json"
)

// The file format. The first line is a header: the kind of file, the version of its schema, and the
// checksum of every byte after that line. The rest is JSON. Only this package writes it (an edit
// breaks the checksum), with an indentation that makes each lease one block of whole lines. Blocks
// that didn't change are copied: that is quick, and it keeps fields that a newer berth of the same
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

// state is the content of the ledger file.
type state struct {
	// reaped is the time of the last reap, since boot.
	reaped time.Duration
	leases []record
	queue  []block[waiter]
}

// block is one entry of the file: the value, and its bytes there; raw is nil if
// the value is new or was changed.
type block[T any] struct {
	v   T
	raw []byte
}

// waiter is one request in the queue.
type waiter struct {
	ID      string    `json:"id"`
	Request string    `json:"request"`
	Owner   Owner     `json:"owner"`
	Since   time.Time `json:"since"`
	// Arrived is Since in nanoseconds since boot; the queue is sorted by it.
	Arrived time.Duration `json:"arrived_ns"`
	// Process is the waiting process; the ticket is valid while it lives. Processes of another pid
	// namespace check its Cgroup instead.
	Process Process `json:"process"`
	Cgroup  string  `json:"cgroup"`
	// ServerPID and ServerStart are the process that waits on behalf of Process, in the same pid namespace, 0 if Process
	// waits itself. ServerEnded is when its end was noticed, since boot, 0 before. Files of earlier versions have none of them.
	ServerPID   int           `json:"server_pid,omitempty"`
	ServerStart uint64        `json:"server_start,omitempty"`
	ServerEnded time.Duration `json:"server_ended_ns,omitempty"`
}

// serverProcess is the process that waits on behalf of w.Process, 0 if there is none.
func (w waiter) serverProcess() Process {
	return Process{w.ServerPID, w.ServerStart, w.Process.Namespace}
}

// appendHeader is the header of a file of about so many bytes. Its checksum is filled in by fillChecksum.
func appendHeader(kind string, size int) []byte {
	b := make([]byte, 0, len(headBegin)+len(kind)+len(headSum)+len(noSum)+len(headEnd)+size)
	b = append(append(b, headBegin...), kind...)
	return append(append(append(b, headSum...), noSum...), headEnd...)
}

// fillChecksum fills in the checksum of a file that appendHeader began, once its body is appended.
func fillChecksum(kind string, file []byte) []byte {
	at := len(headBegin) + len(kind) + len(headSum)
	sum := sha256.Sum256(file[at+len(noSum)+len(headEnd):])
	hex.Encode(file[at:], sum[:])
	return file
}

// The header's parts as this version writes them.
const (
	headBegin = `{"berth":"`
	headSum   = `","version":1,"sha256":"` // the number is version
	headEnd   = "\"}\n"
	noSum     = "0000000000000000000000000000000000000000000000000000000000000000"
)

// checkHeader checks the header and returns the body. Its errors are ErrFuture, or
// reasons to call the file corrupt.
func checkHeader(kind string, data []byte) ([]byte, error) {
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

// readHeader returns the checksum. Files of every earlier version must stay readable here:
// there is no migration. A newer version is ErrFuture, anything else is damage.
func readHeader(kind string, line []byte) (string, error) {
	before := len(headBegin) + len(kind) + len(headSum)
	if len(line) == before+len(noSum)+len(headEnd)-1 && string(line[:before]) == headBegin+kind+headSum {
		return string(line[before : before+len(noSum)]), nil
	}
	var h header
	if new(json.Codec).Unmarshal(line, &h) != nil || h.Berth != kind || h.Version < 1 {
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

func (c *codec) encode(s state) ([]byte, error) {
	size := 2 * maxHeader // an estimate, which saves copying
	for _, r := range s.leases {
		size += max(len(r.raw), 2*maxHeader)
	}
	for _, w := range s.queue {
		size += max(len(w.raw), 2*maxHeader)
	}
	b := appendHeader(kindLedger, size)
	b = strconv.AppendInt(append(b, openFormat...), int64(s.reaped), 10)
	b = append(b, openLeases...)
	var err error
	for i, r := range s.leases {
		if b, err = c.appendEntry(b, r.raw, r.v, i == len(s.leases)-1); err != nil {
			return nil, fmt.Errorf("encode ledger: %w", err)
		}
	}
	b = append(b, openLine...)
	for i, w := range s.queue {
		if b, err = c.appendEntry(b, w.raw, &w.v, i == len(s.queue)-1); err != nil {
			return nil, fmt.Errorf("encode ledger: %w", err)
		}
	}
	b = append(b, closeFile...)
	if len(b) > maxFile {
		return nil, fmt.Errorf("the ledger would have more than %d bytes with %d leases and %d waiting requests: berth leases shows whose they are", maxFile, len(s.leases), len(s.queue))
	}
	return fillChecksum(kindLedger, b), nil
}

// appendEntry appends the bytes that an entry had in the file, or encodes it if it is new or
// changed.
func (c *codec) appendEntry(b, raw []byte, v any, last bool) (_ []byte, err error) {
	b = append(b, indent...)
	if raw != nil {
		b = append(b, raw...)
	} else if b, err = c.json.AppendIndent(b, v, indent); err != nil {
		return nil, err
	}
	if !last {
		b = append(b, ',')
	}
	return append(b, '\n'), nil
}

// codec reads and writes the files of a ledger. It remembers the entries that it has read,
// since a process that waits in the queue reads the same ones again and again; values that
// it returned must therefore not be changed in place.
type codec struct {
	json    json.Codec
	mu      sync.Mutex // of the maps
	leases  map[string]*Lease
	waiters map[string]waiter
}

// decodeOutline decodes a ledger file. Leases stay encoded; only their ids are read.
func (c *codec) decodeOutline(data []byte) (state, error) {
	body, err := checkHeader(kindLedger, data)
	if err != nil {
		return state{}, err
	}
	return c.decodeBody(body)
}

func (c *codec) decodeBody(body []byte) (s state, err error) {
	rest, ok := bytes.CutPrefix(body, []byte(openFormat))
	stamp, rest, found := bytes.Cut(rest, []byte(openLeases))
	ns, err := strconv.ParseInt(string(stamp), 10, 64)
	if !ok || !found || err != nil {
		return state{}, errors.New("leases expected")
	}
	s.reaped = time.Duration(ns)
	for raw := range splitEntries(&rest) {
		r, err := readRecord(raw)
		if err != nil {
			return state{}, err
		}
		s.leases = append(s.leases, r)
	}
	if rest, ok = bytes.CutPrefix(rest, []byte(openLine)); !ok {
		return state{}, errors.New("line expected")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for raw := range splitEntries(&rest) {
		w, err := decodeEntry(&c.json, &c.waiters, raw, waiter.valid)
		if err != nil {
			return state{}, err
		}
		s.queue = append(s.queue, block[waiter]{w, raw})
	}
	if string(rest) != closeFile {
		return state{}, errors.New("end expected")
	}
	return s, nil
}

// decodeLeases decodes the leases that decodeOutline has left encoded.
func (c *codec) decodeLeases(s *state) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range s.leases {
		if r := &s.leases[i]; r.v == nil {
			var err error
			if r.v, err = decodeEntry(&c.json, &c.leases, r.raw, (*Lease).valid); err != nil {
				return err
			}
		}
	}
	return nil
}

// splitEntries yields entries up to the first line that doesn't begin one, and sets rest to that
// line. An entry without an end stays in rest.
func splitEntries(rest *[]byte) iter.Seq[[]byte] {
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

var errIncomplete = errors.New("an entry lacks required fields")

// decodeEntry returns the value of an entry, from memory if it was read before.
func decodeEntry[T any](from *json.Codec, known *map[string]T, raw []byte, valid func(T) bool) (v T, err error) {
	v, ok := (*known)[string(raw)]
	if ok {
		return v, nil
	}
	if err := from.Unmarshal(raw, &v); err != nil {
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

func (l *Lease) valid() bool { return isValidID(l.ID) && len(l.Devices) > 0 }

func (w waiter) valid() bool { return isValidID(w.ID) && w.Request != "" }

// isValidID reports whether an id can be a file's name.
func isValidID(id string) bool {
	return len(id) == idLength && strings.Trim(id, "0123456789abcdef") == ""
}

func (c *codec) encodeLease(l Lease) ([]byte, error) {
	b, err := c.json.AppendIndent(appendHeader(kindLease, 2*maxHeader), &l, "")
	if err != nil {
		return nil, fmt.Errorf("encode lease %s: %w", l.ID, err)
	}
	return fillChecksum(kindLease, append(b, '\n')), nil
}

func (c *codec) decodeLease(data []byte) (Lease, error) {
	body, err := checkHeader(kindLease, data)
	if err != nil {
		return Lease{}, err
	}
	var l Lease
	if err := c.json.Unmarshal(body, &l); err != nil {
		return Lease{}, err
	}
	if !l.valid() {
		return Lease{}, errors.New("the lease lacks required fields")
	}
	return l, nil
}

// record is one lease of the file. Most transactions need only the ids and the devices of other
// leases, so the rest is decoded on demand.
type record struct {
	id  string
	v   *Lease // nil if it wasn't read yet
	raw []byte // nil if v is new or was changed
}

func newRecord(l Lease) record { return record{id: l.ID, v: &l} }

// readRecord reads only the id of a lease. If the id isn't at the position at which this version
// writes it, the whole lease is decoded.
func readRecord(raw []byte) (record, error) {
	const before = "{\n" + inner + `"id": "`
	if rest, ok := bytes.CutPrefix(raw, []byte(before)); ok && len(rest) > idLength && rest[idLength] == '"' {
		if id := string(rest[:idLength]); isValidID(id) {
			return record{id: id, raw: raw}, nil
		}
	}
	var l Lease
	if err := new(json.Codec).Unmarshal(raw, &l); err != nil {
		return record{}, err
	}
	if !l.valid() {
		return record{}, errIncomplete
	}
	return record{l.ID, &l, raw}, nil
}

// inner is the indent of a lease's own fields.
const inner = indent + "  "

// devices returns the fields that Device.Conflicts needs: UUID, parent, nodes and shared. ok is false
// if they can't be found without decoding the lease; the caller then uses readLease, which also
// reports errors.
func (r record) devices() ([]gpu.Device, bool) {
	if r.v != nil {
		return r.v.Devices, true
	}
	_, rest, _ := bytes.Cut(r.raw, []byte("\n"+inner+"\"devices\": [\n"))
	list, _, ok := bytes.Cut(rest, []byte("\n"+inner+"]"))
	var ds []gpu.Device
	for line := range bytes.Lines(list) {
		line = bytes.TrimLeft(line, " ")
		if bytes.HasPrefix(line, []byte(`"uuid": `)) {
			ds = append(ds, gpu.Device{})
		}
		if len(ds) == 0 {
			continue
		}
		d, field := &ds[len(ds)-1], (*string)(nil)
		name, value, _ := bytes.Cut(line, []byte(`": "`))
		switch string(name) {
		case `"uuid`:
			field = &d.UUID
		case `"parent`:
			field = &d.Parent
		case `"node`:
			field = &d.Node
		case `"nodes`:
			field = &d.Nodes
		case `"common_nodes`:
			field = &d.CommonNodes
		default:
			d.Shared = d.Shared || bytes.HasPrefix(line, []byte(`"shared": true`))
			continue
		}
		*field = readPlainString(value)
		ok = ok && *field != ""
	}
	return ds, ok && len(ds) > 0
}

// readPlainString returns a JSON string up to its closing quote, "" if it has escapes.
func readPlainString(b []byte) string {
	v, _, ok := bytes.Cut(b, []byte(`"`))
	if !ok || bytes.ContainsRune(v, '\\') {
		return ""
	}
	return string(v)
}
