package match

import (
	"slices"
	"strings"
)

// supply has the devices from which several demands are met. Devices that fit the same demands are
// alike: whether all demands can be met depends on how many of each class there are, and on nothing
// else.
type supply struct {
	demands []*demand
	classes []class
	of      map[string]int // the class of a device, by UUID; nil for one demand alone
	// short are the demands that couldn't be met together when servesRest returned false.
	short []bool
	known map[string]bool // cached results of hasEnough, by the remaining devices
}

type class struct {
	fits []bool // by demand
	room int    // how many devices are left
}

func newSupply(demands []*demand) *supply {
	s := &supply{demands: demands}
	if len(demands) < 2 {
		return s // a single demand shares with no other
	}
	s.of, s.known = map[string]int{}, map[string]bool{}
	fits := map[string][]bool{}
	var order []string
	for i, d := range demands {
		for _, c := range d.pool {
			if fits[c.UUID] == nil {
				fits[c.UUID] = make([]bool, len(demands))
				order = append(order, c.UUID)
			}
			fits[c.UUID][i] = true
		}
	}
	for _, uuid := range order {
		k := slices.IndexFunc(s.classes, func(c class) bool { return slices.Equal(c.fits, fits[uuid]) })
		if k < 0 {
			k, s.classes = len(s.classes), append(s.classes, class{fits: fits[uuid]})
		}
		s.of[uuid] = k
		s.classes[k].room++
	}
	return s
}

// servesRest reports whether the remaining devices are enough for all demands without chosen
// devices.
func (s *supply) servesRest() bool {
	if s.of == nil {
		s.short = []bool{true}
		return len(s.demands) == 0 || len(s.demands[0].pool) >= s.demands[0].count
	}
	need := make([]int, len(s.demands))
	for i, d := range s.demands {
		if d.chosen == nil {
			need[i] = d.count
		}
	}
	room := make([]int, len(s.classes))
	for i, c := range s.classes {
		room[i] = c.room
	}
	return s.canFlow(need, room)
}

// canFlow reports whether the demands can be met from so much room in each class: it assigns one
// device at a time and reassigns others to other classes to make room (augmenting paths of a
// maximum flow).
func (s *supply) canFlow(need, room []int) bool {
	f := flow{supply: s, room: room, given: make([][]int, len(need))}
	for d := range need {
		f.given[d] = make([]int, len(room))
	}
	for d, n := range need {
		for range n {
			f.tried = make([]bool, len(need))
			if !f.giveOne(d) {
				s.short = f.tried
				return false
			}
		}
	}
	return true
}

type flow struct {
	*supply
	room  []int
	given [][]int // by demand and class
	tried []bool  // demands, on the way to the present device
}

// giveOne assigns one more device to a demand, by an augmenting path.
func (f *flow) giveOne(d int) bool {
	f.tried[d] = true
	for c := range f.classes {
		if f.classes[c].fits[d] && f.room[c] > 0 {
			f.room[c]--
			f.given[d][c]++
			return true
		}
	}
	for c := range f.classes {
		if !f.classes[c].fits[d] {
			continue
		}
		for other := range f.given {
			if f.given[other][c] > 0 && !f.tried[other] && f.giveOne(other) {
				f.given[other][c]--
				f.given[d][c]++
				return true
			}
		}
	}
	return false
}

// countShortage says how many devices the demands that couldn't be met want together, and
// how many there are for them.
func (s *supply) countShortage() (wanted, there int) {
	if s.of == nil {
		return s.demands[0].count, len(s.demands[0].pool)
	}
	for i, d := range s.demands {
		if s.short[i] {
			wanted += d.count
		}
	}
	for _, c := range s.classes {
		for i, fits := range c.fits {
			if fits && s.short[i] {
				there += c.room
				break
			}
		}
	}
	return wanted, there
}

// nounsOfShortage says what the demands that couldn't be met ask for.
func (s *supply) nounsOfShortage() string {
	var all []string
	for i, d := range s.demands {
		if s.short[i] && !slices.Contains(all, nounOf(d.Request)) {
			all = append(all, nounOf(d.Request))
		}
	}
	return strings.Join(all, " and ")
}

// untakenOf returns the devices of a demand's pool that no other one has taken.
func (s *supply) untakenOf(d *demand) []candidate {
	if s.of == nil {
		return d.pool
	}
	var left []candidate
	for _, c := range d.pool {
		if _, ok := s.of[c.UUID]; ok {
			left = append(left, c)
		}
	}
	return left
}

// takeDevices gives the devices to a demand.
func (s *supply) takeDevices(d *demand, cs []candidate) {
	for _, c := range cs {
		if s.of == nil {
			break
		}
		s.classes[s.of[c.UUID]].room--
		delete(s.of, c.UUID)
	}
	d.chosen = cs
}

// leavesEnough returns a function that reports whether the demand can take the devices at these
// places of left such that its remaining count and all other demands can still be met. It is nil if
// this is always true.
func (s *supply) leavesEnough(d *demand, left []candidate) func(places []int) bool {
	at := slices.Index(s.demands, d)
	alone := !slices.ContainsFunc(s.classes, func(c class) bool {
		for i, fits := range c.fits {
			if fits && c.fits[at] && i != at && s.demands[i].chosen == nil {
				return true
			}
		}
		return false
	})
	if alone {
		return nil
	}
	return func(places []int) bool {
		room := make([]int, len(s.classes))
		for i, c := range s.classes {
			room[i] = c.room
		}
		for _, p := range places {
			room[s.of[left[p].UUID]]--
		}
		return s.hasEnough(at, d.count-len(places), room)
	}
}

// hasEnough caches its results, because many sets have the same classes.
func (s *supply) hasEnough(at, rest int, room []int) bool {
	key := make([]byte, 0, 64)
	key = append(key, byte(at), byte(at>>8))
	for _, r := range room {
		key = append(key, byte(r), byte(r>>8))
	}
	if known, ok := s.known[string(key)]; ok {
		return known
	}
	need := make([]int, len(s.demands))
	for i, d := range s.demands {
		if d.chosen == nil {
			need[i] = d.count
		}
	}
	need[at] = rest
	ok := s.canFlow(need, room)
	s.known[string(key)] = ok
	return ok
}
