package match

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/internal/spell"
)

// Reasons for which a node can't grant a request. [Error] has the details.
var (
	// ErrUnknown: the node knows no such model, profile, index, UUID or address.
	ErrUnknown = errors.New("unknown device")
	// ErrTooMany: more than the node has, so waiting can't help.
	ErrTooMany = errors.New("more than the node has")
	// ErrBusy: the node has them, but not enough are free now.
	ErrBusy = errors.New("not enough free")
	// ErrLost: a device that was asked for by name is there but can't be used.
	ErrLost = errors.New("device is lost")
)

// Error says why a node can't grant a request. errors.Is compares Err.
type Error struct {
	// Err is ErrUnknown, ErrTooMany, ErrBusy, ErrLost or request.ErrBad.
	Err error
	// Request in canonical words.
	Request string
	// Wanted is how many devices were requested, Total how many of that kind the node has in
	// working order, Free how many of these are free. They are set for ErrTooMany and ErrBusy.
	Wanted, Total, Free int
	// Busy are the taken devices that would satisfy the request, for ErrBusy.
	Busy []gpu.Device
	// Known are the names that the node has of the kind that was requested (indexes, models, …), in
	// the node's order. Suggestion is the nearest of them, if one is near. Both are set for
	// ErrUnknown.
	Known      []string
	Suggestion string

	noun   string // the kind of devices requested, for display
	detail string // the rest of the message
}

// Is reports whether target is Err.
func (e *Error) Is(target error) bool { return target == e.Err }

// Error is one line and begins with the request.
func (e *Error) Error() string { return e.Request + ": " + e.reasonText() }

func (e *Error) reasonText() string {
	switch {
	case errors.Is(e.Err, ErrTooMany):
		noun := e.noun
		if e.Total == 1 {
			noun = strings.NewReplacer("GPUs", "GPU", "slices", "slice").Replace(noun)
		}
		return fmt.Sprintf("node has %d %s%s, %d asked", e.Total, noun, e.detail, e.Wanted)
	case errors.Is(e.Err, ErrBusy):
		if e.noun == "" {
			return "taken: " + strings.Join(deviceNames(e.Busy), ", ")
		}
		return fmt.Sprintf("%d of %d %s free, %d asked", e.Free, e.Total, e.noun, e.Wanted)
	case errors.Is(e.Err, ErrUnknown):
		if e.Suggestion != "" {
			return e.detail + " (did you mean " + e.Suggestion + "?); " + e.knownText()
		}
		return e.detail + "; " + e.knownText()
	}
	return e.detail
}

// maxKnown is how many known names an error lists.
const maxKnown = 16

func (e *Error) knownText() string {
	known := gpu.ShortenUUIDs(e.Known)
	switch n := len(known); {
	case n == 0:
		return "it has none of the kind"
	case n > maxKnown:
		return fmt.Sprintf("it has %s and %d more", strings.Join(known[:maxKnown], ", "), n-maxKnown)
	}
	return "it has " + strings.Join(known, ", ")
}

// deviceNames returns the devices' names for messages.
func deviceNames(ds []gpu.Device) []string {
	ns := make([]string, len(ds))
	for i, d := range ds {
		ns[i] = "GPU " + d.Index
		switch {
		case d.Parent != "":
			ns[i] = "slice " + d.Index
		case d.IsCDI():
			ns[i] = d.UUID
		case d.IsNIC():
			ns[i] = "NIC " + d.Index
		}
	}
	return ns
}

// nounOf returns the plural of the requested kind of device; "" for a request by name.
func nounOf(r request.Request) string {
	noun := "GPUs" // a request for "all" may get slices, but never fails with ErrTooMany
	switch {
	case r.IsByID():
		return ""
	case r.Model() != "":
		noun = strings.ToUpper(r.Model())
	case r.Profile() != "":
		noun = r.Profile() + " slices"
	}
	if conditions := r.Conditions(); conditions != nil {
		noun += " with " + strings.Join(conditions, " and ")
	}
	return noun
}

// tooMany is the error of a request for more than total devices. It is ErrUnknown if the node has
// nothing of the requested name.
func (inv node) tooMany(r request.Request, total, wanted int) error {
	model, profile := r.Model(), r.Profile()
	word := cmp.Or(model, profile)
	lost, mig, named := 0, 0, word == ""
	for _, g := range inv.GPUs {
		if model != "" && !gpu.MatchesModel(model, g.Model) {
			continue
		}
		if profile != "" && !slices.ContainsFunc(g.Slices, func(s gpu.Slice) bool { return s.Profile == profile }) {
			continue
		}
		named = true
		switch {
		case g.Lost != "":
			lost++
		case g.MIG && profile == "":
			mig++
		}
	}
	if !named {
		return unknownError(r, "node has no "+word, word, inv.modelsAndProfiles())
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
	return &Error{
		Err: ErrTooMany, Request: r.String(), Wanted: wanted,
		Total: total, Free: total, noun: nounOf(r), detail: detail,
	}
}

func unknownError(r request.Request, detail, word string, known []string) error {
	return &Error{
		Err: ErrUnknown, Request: r.String(), detail: detail,
		Known: known, Suggestion: spell.Nearest(word, known),
	}
}

func (inv node) unknownID(r request.Request, id string) error {
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
	if !strings.Contains(id, "-") { // indexes and addresses are all similar, so a suggestion would mean nothing
		word = ""
	}
	return unknownError(r, "node has no device "+id, word, known)
}

func ambiguousError(r request.Request, id string, found []candidate) error {
	known := make([]string, len(found))
	for i, c := range found {
		known[i] = c.UUID
	}
	return &Error{
		Err: ErrUnknown, Request: r.String(), Known: known,
		detail: id + " fits more than one device",
	}
}

func lostByName(r request.Request, id string, g gpu.GPU) error {
	reason := strings.Join(strings.Fields(g.Lost), " ")
	return &Error{
		Err: ErrLost, Request: r.String(),
		detail: fmt.Sprintf("%s is lost (GPU %d, %s): %s", id, g.Index, g.UUID, reason),
	}
}

func contradictionError(r request.Request, detail string) error {
	return &Error{Err: request.ErrBad, Request: r.String(), detail: detail}
}

// modelsAndProfiles returns the models and the MIG profiles that the node has.
func (inv node) modelsAndProfiles() []string {
	var known []string
	add := func(w string) {
		if w != "" && !slices.Contains(known, w) {
			known = append(known, w)
		}
	}
	for _, g := range inv.GPUs {
		add(gpu.ModelWord(g.Model))
	}
	for _, g := range inv.GPUs {
		for _, s := range g.Slices {
			add(s.Profile)
		}
	}
	return known
}
