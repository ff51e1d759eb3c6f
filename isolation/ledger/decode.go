package ledger

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/berth-gpu/berth/gpu"
)

// scan reads what text has written, and nothing else: the same members in the
// same order, indented in the same way. Whatever is different, such as a member
// that a newer berth added, isn't wrong: it is for encoding/json. So the common
// case costs a microsecond, and the others what they always did.
type scan struct {
	b      []byte
	indent string
	depth  int
	empty  bool // the object or list has had nothing in it yet
	failed bool
}

// parseLease is false if the bytes are for encoding/json.
func parseLease(raw []byte, indent string) (*Lease, bool) {
	s := scan{b: raw, indent: indent}
	l := new(Lease)
	s.lease(l)
	return l, !s.failed && len(s.b) == 0
}

func parseWaiter(raw []byte, indent string) (w waiter, ok bool) {
	s := scan{b: raw, indent: indent}
	s.waiter(&w)
	return w, !s.failed && len(s.b) == 0
}

// skip moves over one text; it is false if something else is there.
func (s *scan) skip(what string) bool {
	if len(s.b) < len(what) || string(s.b[:len(what)]) != what {
		return false
	}
	s.b = s.b[len(what):]
	return true
}

func (s *scan) must(what string) {
	if !s.skip(what) {
		s.fail()
	}
}

// fail ends it all: nothing more is found.
func (s *scan) fail() { s.b, s.failed = nil, true }

func (s *scan) open(bracket string) {
	s.must(bracket)
	s.depth++
	s.empty = true
}

func (s *scan) close(bracket string) {
	s.depth--
	if !s.empty {
		s.line()
	}
	s.must(bracket)
	s.empty = false
}

func (s *scan) line() {
	s.must("\n")
	s.must(s.indent)
	for range s.depth {
		s.must("  ")
	}
}

func (s *scan) next() {
	if !s.empty {
		s.must(",")
	}
	s.line()
	s.empty = false
}

// member moves to the value of a member if that is the next one.
func (s *scan) member(key string) bool {
	before := *s
	s.next()
	if !s.failed && s.skip(`"`) && s.skip(key) && s.skip(`": `) {
		return true
	}
	*s = before
	return false
}

func (s *scan) key(key string) {
	if !s.member(key) {
		s.fail()
	}
}

// token returns the string that comes next with its quotes, and says whether it
// stands for itself.
func (s *scan) token() (quoted []byte, plain bool) {
	plain = true
	if len(s.b) == 0 || s.b[0] != '"' {
		s.fail()
		return nil, false
	}
	for i := 1; i < len(s.b); i++ {
		switch c := s.b[i]; {
		case c == '"':
			quoted, s.b = s.b[:i+1], s.b[i+1:]
			return quoted, plain
		case c == '\\':
			plain = false
			i++
		case c < ' ' || c > '~':
			plain = false
		}
	}
	s.fail()
	return nil, false
}

func (s *scan) string(to *string) {
	quoted, plain := s.token()
	switch {
	case s.failed:
	case plain:
		*to = string(quoted[1 : len(quoted)-1])
	case json.Unmarshal(quoted, to) != nil:
		s.fail()
	}
}

func (s *scan) text(key string, to *string) {
	s.key(key)
	s.string(to)
}

func (s *scan) optText(key string, to *string) {
	if s.member(key) {
		s.string(to)
	}
}

func (s *scan) optTrue(key string, to *bool) {
	if s.member(key) {
		s.must("true")
		*to = true
	}
}

// digits returns an integer as JSON writes it.
func (s *scan) digits() string {
	i := 0
	if len(s.b) > 1 && s.b[0] == '-' && s.b[1] != '0' {
		i = 1
	}
	first := i
	for i < len(s.b) && s.b[i] >= '0' && s.b[i] <= '9' {
		i++
	}
	if i == first || s.b[first] == '0' && i > first+1 {
		s.fail()
		return ""
	}
	n := string(s.b[:i])
	s.b = s.b[i:]
	return n
}

func (s *scan) number(key string, to *uint64) {
	s.key(key)
	n, err := strconv.ParseUint(s.digits(), 10, 64)
	if *to = n; err != nil {
		s.fail()
	}
}

func (s *scan) signed(key string) int64 {
	s.key(key)
	n, err := strconv.ParseInt(s.digits(), 10, 64)
	if err != nil {
		s.fail()
	}
	return n
}

// int is signed on a machine of any size.
func (s *scan) int(key string, to *int) {
	n := s.signed(key)
	if *to = int(n); int64(*to) != n {
		s.fail()
	}
}

func (s *scan) time(key string, to *time.Time) {
	s.key(key)
	quoted, plain := s.token()
	if !plain || to.UnmarshalJSON(quoted) != nil {
		s.fail()
	}
}

func (s *scan) lease(l *Lease) {
	s.open("{")
	s.text("id", &l.ID)
	s.text("state", (*string)(&l.State))
	s.key("devices")
	l.Devices = s.devices()
	s.text("request", &l.Request)
	s.owner(&l.Owner)
	s.time("since", &l.Since)
	s.number("ticks", &l.Ticks)
	s.close("}")
}

func (s *scan) devices() []gpu.Device {
	ds := make([]gpu.Device, 0, 1)
	for s.open("["); !s.failed && (s.empty || len(s.b) > 0 && s.b[0] == ','); {
		var d gpu.Device
		s.next()
		s.open("{")
		s.text("uuid", &d.UUID)
		s.optText("parent", &d.Parent)
		s.text("index", &d.Index)
		s.optText("model", &d.Model)
		s.optText("profile", &d.Profile)
		s.optTrue("shared", &d.Shared)
		s.close("}")
		ds = append(ds, d)
	}
	s.close("]")
	return ds
}

func (s *scan) owner(o *Owner) {
	s.key("owner")
	s.open("{")
	s.text("door", &o.Door)
	s.optText("container", &o.Container)
	s.optText("name", &o.Name)
	s.optText("bundle", &o.Bundle)
	s.int("uid", &o.UID)
	s.optText("command", &o.Command)
	s.process(&o.Process)
	s.optTrue("reaper", &o.Reaper)
	s.text("boot_id", &o.BootID)
	s.optText("cgroup", &o.Cgroup)
	s.optTrue("own_cgroup", &o.OwnCgroup)
	if before := *s; s.member("cgroupns") {
		*s = before
		s.number("cgroupns", &o.CgroupNS)
	}
	s.optText("maker_cgroup", &o.Maker)
	s.optText("pid_file", &o.PIDFile)
	s.optText("runtime_root", &o.RuntimeRoot)
	s.optText("runtime", &o.Runtime)
	s.close("}")
}

func (s *scan) process(p *Process) {
	s.key("process")
	s.open("{")
	s.int("pid", &p.PID)
	s.number("start", &p.Start)
	s.number("pidns", &p.Namespace)
	s.close("}")
}

func (s *scan) waiter(w *waiter) {
	s.open("{")
	s.text("id", &w.ID)
	s.text("request", &w.Request)
	s.owner(&w.Owner)
	s.time("since", &w.Since)
	w.Arrived = time.Duration(s.signed("arrived_ns"))
	s.process(&w.Process)
	s.text("cgroup", &w.Cgroup)
	s.close("}")
}
