package ledger

import (
	"encoding/json"
	"math"
	"strconv"
	"time"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/gpu"
)

// A lease, a waiter and an event are written by hand: encoding/json takes half a
// millisecond to prepare itself for them, in every process anew, and most
// processes take one lease in their life. The bytes are those that encoding/json
// would write, indented or not.

// text is JSON that is being written. Errors stay until the end.
type text struct {
	b   []byte
	err error
	// indent begins a line of the outermost value, if flat is false.
	indent string
	depth  int
	flat   bool
	filled bool // the object or list has something in it
}

func (t *text) open(bracket byte) {
	t.b = append(t.b, bracket)
	t.depth++
	t.filled = false
}

func (t *text) close(bracket byte) {
	t.depth--
	if t.filled {
		t.line()
	}
	t.b = append(t.b, bracket)
	t.filled = true
}

// line begins a new one.
func (t *text) line() {
	if t.flat {
		return
	}
	t.b = append(append(t.b, '\n'), t.indent...)
	for range t.depth {
		t.b = append(t.b, "  "...)
	}
}

// next begins an element of a list or a member of an object.
func (t *text) next() {
	if t.filled {
		t.b = append(t.b, ',')
	}
	t.line()
	t.filled = true
}

// key begins a member; keys need no escapes.
func (t *text) key(k string) {
	t.next()
	t.b = append(append(append(t.b, '"'), k...), `":`...)
	if !t.flat {
		t.b = append(t.b, ' ')
	}
}

func (t *text) string(s string) {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			t.other(s)
			return
		}
	}
	t.b = append(append(append(t.b, '"'), s...), '"')
}

// other writes what encoding/json knows better.
func (t *text) other(v any) {
	b, err := json.Marshal(v)
	if err != nil && t.err == nil {
		t.err = err
	}
	t.b = append(t.b, b...)
}

func (t *text) text(k, s string) {
	t.key(k)
	t.string(s)
}

// The opt methods leave out what is empty.
func (t *text) optText(k, s string) {
	if s != "" {
		t.text(k, s)
	}
}

func (t *text) number(k string, n uint64) {
	t.key(k)
	t.b = strconv.AppendUint(t.b, n, 10)
}

func (t *text) signed(k string, n int64) {
	t.key(k)
	t.b = strconv.AppendInt(t.b, n, 10)
}

func (t *text) optTrue(k string, v bool) {
	if v {
		t.key(k)
		t.b = append(t.b, "true"...)
	}
}

func (t *text) optSeconds(k string, s float64) {
	switch size := math.Abs(s); {
	case s == 0:
	case size >= 1e-6 && size < 1e21: // the others are written with an exponent
		t.key(k)
		t.b = strconv.AppendFloat(t.b, s, 'f', -1, 64)
	default:
		t.key(k)
		t.other(s)
	}
}

func (t *text) time(k string, at time.Time) {
	t.key(k)
	b, err := at.MarshalJSON()
	if err != nil && t.err == nil {
		t.err = err
	}
	t.b = append(t.b, b...)
}

func (t *text) lease(l *Lease) {
	t.open('{')
	t.text("id", l.ID)
	t.text("state", string(l.State))
	t.key("devices")
	t.devices(l.Devices)
	t.text("request", l.Request)
	t.owner(l.Owner)
	t.time("since", l.Since)
	t.number("ticks", l.Ticks)
	t.close('}')
}

func (t *text) devices(ds []gpu.Device) {
	if ds == nil {
		t.b = append(t.b, "null"...)
		return
	}
	t.open('[')
	for _, d := range ds {
		t.next()
		t.open('{')
		t.text("uuid", d.UUID)
		t.optText("parent", d.Parent)
		t.text("index", d.Index)
		t.optText("model", d.Model)
		t.optText("profile", d.Profile)
		t.optTrue("shared", d.Shared)
		t.close('}')
	}
	t.close(']')
}

func (t *text) owner(o Owner) {
	t.key("owner")
	t.open('{')
	t.text("door", o.Door)
	t.optText("container", o.Container)
	t.optText("name", o.Name)
	t.optText("bundle", o.Bundle)
	t.signed("uid", int64(o.UID))
	t.optText("command", o.Command)
	t.process(o.Process)
	t.optTrue("reaper", o.Reaper)
	t.text("boot_id", o.BootID)
	t.optText("cgroup", o.Cgroup)
	t.optTrue("own_cgroup", o.OwnCgroup)
	if o.CgroupNS != 0 {
		t.number("cgroupns", o.CgroupNS)
	}
	t.optText("maker_cgroup", o.Maker)
	t.optText("pid_file", o.PIDFile)
	t.optText("runtime_root", o.RuntimeRoot)
	t.optText("runtime", o.Runtime)
	t.close('}')
}

func (t *text) process(p Process) {
	t.key("process")
	t.open('{')
	t.signed("pid", int64(p.PID))
	t.number("start", p.Start)
	t.number("pidns", p.Namespace)
	t.close('}')
}

func (t *text) waiter(w waiter) {
	t.open('{')
	t.text("id", w.ID)
	t.text("request", w.Request)
	t.owner(w.Owner)
	t.time("since", w.Since)
	t.signed("arrived_ns", int64(w.Arrived))
	t.process(w.Process)
	t.text("cgroup", w.Cgroup)
	t.close('}')
}

// event writes one line of the log.
func (t *text) event(e event) {
	t.open('{')
	t.time("time", e.Time)
	t.text("event", e.Event)
	t.text("lease", e.Lease)
	t.optText("request", e.Request)
	t.key("devices")
	t.uuids(e.Devices)
	t.owner(e.Owner)
	t.optSeconds("waited_s", e.Waited)
	t.optSeconds("held_s", e.Held)
	t.optText("reason", e.Reason)
	t.removed(e.Removed)
	t.close('}')
	t.b = append(t.b, '\n')
}

func (t *text) removed(removed []edits.Removal) {
	if len(removed) == 0 {
		return
	}
	t.key("removed")
	t.open('[')
	for _, r := range removed {
		t.next()
		t.open('{')
		t.text("kind", r.Kind)
		t.text("name", r.Name)
		t.optText("source", r.Source)
		t.optText("why", r.Why)
		t.close('}')
	}
	t.close(']')
}

func (t *text) uuids(uuids []string) {
	if uuids == nil {
		t.b = append(t.b, "null"...)
		return
	}
	t.open('[')
	for _, u := range uuids {
		t.next()
		t.string(u)
	}
	t.close(']')
}
