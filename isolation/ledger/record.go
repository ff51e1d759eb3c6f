package ledger

import (
	"bytes"
	"encoding/json"

	"github.com/berth-gpu/berth/gpu"
)

// record is one lease of the file. Most changes don't need to know more of the
// others' leases than their ids, or than their devices.
type record struct {
	id  string
	v   *Lease // nil if it wasn't read yet
	raw []byte // nil if v is new or was changed
}

func newRecord(l Lease) record { return record{id: l.ID, v: &l} }

// peek reads a lease's id. Where it isn't where this version writes it, everything
// is read.
func peek(raw []byte) (record, error) {
	const before = "{\n" + inner + `"id": "`
	if rest, ok := bytes.CutPrefix(raw, []byte(before)); ok && len(rest) > idLength && rest[idLength] == '"' {
		if id := string(rest[:idLength]); validID(id) {
			return record{id: id, raw: raw}, nil
		}
	}
	var l Lease
	if err := json.Unmarshal(raw, &l); err != nil {
		return record{}, err
	}
	if !l.valid() {
		return record{}, errIncomplete
	}
	return record{l.ID, &l, raw}, nil
}

// inner is the indent of a lease's own fields.
const inner = indent + "  "

// devices returns what conflicts depend on: UUIDs, parents, and what is shared. It is false if they
// can't be read in passing; fill then reads everything, or says what is wrong.
func (r record) devices() ([]gpu.Device, bool) {
	if r.v != nil {
		return r.v.Devices, true
	}
	_, rest, _ := bytes.Cut(r.raw, []byte("\n"+inner+"\"devices\": [\n"))
	list, _, ok := bytes.Cut(rest, []byte("\n"+inner+"]"))
	var ds []gpu.Device
	for line := range bytes.Lines(list) {
		line = bytes.TrimLeft(line, " ")
		if v, found := bytes.CutPrefix(line, []byte(`"uuid": "`)); found {
			ds = append(ds, gpu.Device{UUID: plain(v)})
			ok = ok && ds[len(ds)-1].UUID != ""
		} else if v, found := bytes.CutPrefix(line, []byte(`"parent": "`)); found && len(ds) > 0 {
			ds[len(ds)-1].Parent = plain(v)
			ok = ok && ds[len(ds)-1].Parent != ""
		} else if bytes.HasPrefix(line, []byte(`"shared": true`)) && len(ds) > 0 {
			ds[len(ds)-1].Shared = true
		}
	}
	return ds, ok && len(ds) > 0
}

// plain returns a JSON string up to its closing quote, "" if it has escapes.
func plain(b []byte) string {
	v, _, ok := bytes.Cut(b, []byte(`"`))
	if !ok || bytes.ContainsRune(v, '\\') {
		return ""
	}
	return string(v)
}
