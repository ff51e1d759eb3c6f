package gpu

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// MatchError says why a node can't grant a request. For errors.Is it is what Err is.
type MatchError struct {
	// Err is ErrUnknown, ErrTooMany, ErrBusy, ErrLost or ErrRequest.
	Err error
	// Request in canonical words.
	Request string
	// Wanted is how many devices were asked for, Total how many of the kind the
	// node has in working order, Free how many of these nobody holds. They are
	// set for ErrTooMany and ErrBusy.
	Wanted, Total, Free int
	// Busy are those of the taken devices that are in the way, for ErrBusy.
	Busy []Device
	// Known are the node's words of the kind that was unknown, in the node's
	// order, and Suggestion is the nearest of them, if one is near. For ErrUnknown.
	Known      []string
	Suggestion string

	noun   string // what was asked for, for people
	detail string // what else there is to say
}

// Is makes the error what Err is.
func (e *MatchError) Is(target error) bool { return target == e.Err }

// Error is one line that begins with the request.
func (e *MatchError) Error() string { return e.Request + ": " + e.reason() }

func (e *MatchError) reason() string {
	switch {
	case errors.Is(e.Err, ErrTooMany):
		noun := e.noun
		if e.Total == 1 {
			noun = strings.NewReplacer("GPUs", "GPU", "slices", "slice").Replace(noun)
		}
		return fmt.Sprintf("node has %d %s%s, %d asked", e.Total, noun, e.detail, e.Wanted)
	case errors.Is(e.Err, ErrBusy):
		if e.noun == "" {
			return "taken: " + strings.Join(names(e.Busy), ", ")
		}
		return fmt.Sprintf("%d of %d %s free, %d asked", e.Free, e.Total, e.noun, e.Wanted)
	case errors.Is(e.Err, ErrUnknown):
		if e.Suggestion != "" {
			return e.detail + " (did you mean " + e.Suggestion + "?); " + e.known()
		}
		return e.detail + "; " + e.known()
	}
	return e.detail
}

// maxKnown bounds a line: the indexes of a big node, or as many slices. Of UUIDs, which
// nobody chooses among by reading, there are only examples.
const maxKnown, maxUUIDs = 16, 4

func (e *MatchError) known() string {
	most := maxKnown
	if len(e.Known) > 0 && isUUID(e.Known[0]) {
		most = maxUUIDs
	}
	switch n := len(e.Known); {
	case n == 0:
		return "it has none of the kind"
	case n > most:
		return fmt.Sprintf("it has %s and %d more", strings.Join(e.Known[:most], ", "), n-most)
	}
	return "it has " + strings.Join(e.Known, ", ")
}

func isUUID(word string) bool {
	return strings.HasPrefix(word, "GPU-") || strings.HasPrefix(word, "MIG-")
}

// names returns devices as people call them.
func names(ds []Device) []string {
	ns := make([]string, len(ds))
	for i, d := range ds {
		ns[i] = "GPU " + d.Index
		switch {
		case d.Parent != "":
			ns[i] = "slice " + d.Index
		case d.CDI():
			ns[i] = d.UUID
		case d.IsNIC():
			ns[i] = "NIC " + d.Index
		}
	}
	return ns
}

// noun says what is asked for, in the plural; "" for ids.
func (r Request) noun() string {
	var noun string
	switch r.kind {
	case kindIDs:
		return ""
	case kindModel:
		noun = strings.ToUpper(r.word)
	case kindProfile:
		noun = r.word + " slices"
	default:
		noun = "GPUs" // "all" can be slices too, but then it is never too many
	}
	for i, m := range r.mem {
		if m != (memory{}) {
			noun += [...]string{" with ", " and "}[min(i, 1)] + m.String()
		}
	}
	return noun
}

// tooMany is the error of a request for more than total devices. It is
// ErrUnknown instead if nothing on the node bears the name that was asked for.
func (inv Inventory) tooMany(r Request, total, wanted int) error {
	lost, mig, named := 0, 0, r.word == ""
	for _, g := range inv.GPUs {
		if r.kind == kindModel && !matchesModel(r.word, g.Model) {
			continue
		}
		if r.kind == kindProfile && !slices.ContainsFunc(g.Slices, func(s Slice) bool { return s.Profile == r.word }) {
			continue
		}
		named = true
		switch {
		case g.Lost != "":
			lost++
		case g.MIG && r.kind != kindProfile:
			mig++
		}
	}
	if !named {
		return unknown(r, "node has no "+r.word, r.word, inv.words())
	}
	var notes []string
	if lost > 0 {
		notes = append(notes, strconv.Itoa(lost)+" more lost")
	}
	if mig > 0 {
		notes = append(notes, strconv.Itoa(mig)+" more in MIG mode")
	}
	detail := ""
	if len(notes) > 0 {
		detail = " (" + strings.Join(notes, ", ") + ")"
	}
	return &MatchError{
		Err: ErrTooMany, Request: r.String(), Wanted: wanted,
		Total: total, Free: total, noun: r.noun(), detail: detail,
	}
}

func unknown(r Request, detail, word string, known []string) error {
	return &MatchError{
		Err: ErrUnknown, Request: r.String(), detail: detail,
		Known: known, Suggestion: nearest(word, known),
	}
}

func (inv Inventory) unknownID(r Request, id string) error {
	var known []string
	for _, g := range inv.GPUs {
		switch {
		case strings.HasPrefix(id, "GPU-"):
			known = append(known, g.UUID)
		case strings.Contains(id, "."):
			known = append(known, g.PCI)
		case isNumber(id):
			known = append(known, strconv.Itoa(g.Index))
		}
		for _, s := range g.Slices {
			switch {
			case strings.HasPrefix(id, "MIG-"):
				known = append(known, s.UUID)
			case strings.Contains(id, ":") && !strings.Contains(id, "."):
				known = append(known, g.SliceDevice(s).Index)
			}
		}
	}
	word := id
	if !strings.Contains(id, "-") { // any index is near any other, any address too
		word = ""
	}
	return unknown(r, "node has no device "+id, word, known)
}

func ambiguous(r Request, id string, found []candidate) error {
	known := make([]string, len(found))
	for i, c := range found {
		known[i] = c.UUID
	}
	return &MatchError{
		Err: ErrUnknown, Request: r.String(), Known: known,
		detail: id + " fits more than one device",
	}
}

func lostByName(r Request, id string, g GPU) error {
	reason := strings.Join(strings.Fields(g.Lost), " ")
	return &MatchError{
		Err: ErrLost, Request: r.String(),
		detail: fmt.Sprintf("%s is lost (GPU %d, %s): %s", id, g.Index, g.UUID, reason),
	}
}

func contradiction(r Request, detail string) error {
	return &MatchError{Err: ErrRequest, Request: r.String(), detail: detail}
}

// words returns the models and the MIG profiles that the node has.
func (inv Inventory) words() []string {
	var known []string
	add := func(w string) {
		if w != "" && !slices.Contains(known, w) {
			known = append(known, w)
		}
	}
	for _, g := range inv.GPUs {
		add(shortModel(g.Model))
	}
	for _, g := range inv.GPUs {
		for _, s := range g.Slices {
			add(s.Profile)
		}
	}
	return known
}

// nearest returns the first of the known words with the fewest edits to word, ""
// if even that one takes more than two, or half of the word.
func nearest(word string, known []string) string {
	best, fewest := "", min(2, len(word)/2)
	for _, k := range known {
		if d := edits(strings.ToLower(word), strings.ToLower(k)); d <= fewest && (best == "" || d < fewest) {
			best, fewest = k, d
		}
	}
	return best
}

// edits is the Levenshtein distance in bytes.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}
