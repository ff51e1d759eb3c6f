// Package request reads what a task asks for: [Parse] is the only parser of the request
// language, whatever the entry point. It also joins requests and writes them as they are
// shown. The package is pure: which devices a request gets is package gpu/match's decision.
package request

import (
	"errors"
	"slices"
	"strconv"
	"strings"
)

// ErrBad: the words of a request aren't of the language, or they contradict
// each other (a device named twice, a GPU together with a slice of it).
var ErrBad = errors.New("bad request")

// ErrNone: the request asks for no device at all: "", "0", "none", "void". It is an ErrBad too;
// entry points that accept such words as "no GPU" check for it.
var ErrNone = errors.New("asks for no device")

// Limits of the language. They leave room for a node of 16 GPUs of which every
// one is cut into seven slices, each named by its UUID.
const (
	maxRequest = 8192 // bytes
	maxWord    = 64   // bytes of a model, a profile or an id
	maxIDs     = 256
	maxNumber  = 999 // counts and indexes
)

// Request is what a task asks for. It is built by [Parse] only, is plain
// data, and two requests that mean the same words are equal (==).
//
// The language, in which upper and lower case are the same, blanks around words
// and one or two pairs of quotes around the whole don't count:
//
//	2  count=2            two GPUs of any model
//	all  count=all        every GPU; on a node with none outside MIG mode, every slice
//	h100:2  h100          two GPUs of the model, one
//	1g.10gb:2  1g.10gb    two MIG slices of the profile, one
//	2,mem>=40G            a condition (at most two); mem>=40G alone asks for one GPU
//	0,3  device=0,3       GPUs by index
//	device=0              one GPU by index, for a lone number is a count
//	0:1  GPU-8f4a…:1      a slice: its MIG index in its GPU
//	GPU-8f4a…  MIG-03c1…  by UUID, or as much of it as fits one device only
//	0000:1b:00.0 1b:00.0  a GPU by PCI address, also with the eight digits of NVML
//	2,+gds,+imex=0-3      and what goes with them: a [Feature] for each word with a +
//
// Ids of all kinds can be mixed in a list; counts, models and profiles can't be.
// Before words other than a lone number "device=" changes nothing, since Docker's
// command line takes some of them only in that form (device=h100:2).
//
// A model's word must be made of whole words of the model's name in their order,
// "NVIDIA " and the like left out at will: h100, a100-40gb, rtx4090 and
// nvidia-h100-80gb-hbm3 are models, a10 isn't an A100. It needs a letter, so
// that 0:1 is always a slice, never a model and a count.
//
// Features can stand anywhere in the list, and change nothing of how the rest is
// read: 2,+gds is two GPUs. There is no request of features alone.
//
// CDI devices of other vendors go by their names, alone or with the rest:
// vendor.example/nic=port0, or 2,vendor.example/nic=port0.
//
// NICs (RDMA devices) go with the rest: 2,nics=auto takes those near the GPUs,
// 2,nics=1 the nearest one, 2,nics=mlx5_0+mlx5_3 these. By count or by name they
// can be asked for alone.
//
// Parts joined by ";" are a gang's: 2;2;1g.10gb is two GPUs, two other ones and a
// slice. Each part is a request as above and gets devices of its own; all are
// granted, or none. See [NewGang].
//
// Memory is compared as cards are sold. K, M, G, T are powers of 1000, Ki to Ti of
// 1024, a "B" after them changes nothing. A card counts as one of N G when its
// memory lies between N·10⁹ bytes less 2 % (what the driver keeps for itself) and
// N·2³⁰: an H100 80GB (81559 MiB) is =80G, >=80G and <=80G, but neither >80G nor <80G.
type Request struct {
	kind  kind
	count int       // for all but ids and all
	word  string    // model, profile, the ids joined by commas, or a gang's parts; canonical
	mem   [2]memory // conditions, sorted; unused ones are zero
	// features in canonical order, each after ",+"
	features string
	// cdi are the names of CDI devices, sorted, each after ","
	cdi string
	// nics is "auto", a count, or names joined by "+"; "" for none
	nics string
}

type kind uint8

const (
	kindZero kind = iota // not a request
	kindCount
	kindAll
	kindModel
	kindProfile
	kindIDs
	kindOther // CDI devices and NICs, and no GPUs
	kindGang  // word is the parts' text, joined by ";"
)

// String returns the request in canonical words: Parse(r.String()) is r.
// The zero Request is "".
func (r Request) String() string {
	var b strings.Builder
	switch r.kind {
	case kindCount:
		b.WriteString(strconv.Itoa(r.count))
	case kindAll:
		b.WriteString("all")
	case kindModel, kindProfile:
		b.WriteString(r.word)
		if r.count != 1 {
			b.WriteString(":" + strconv.Itoa(r.count))
		}
	case kindIDs:
		b.WriteString("device=" + r.word)
	case kindGang:
		return r.word
	}
	for _, m := range r.mem {
		if m != (memory{}) {
			b.WriteString("," + m.String())
		}
	}
	if r.nics != "" {
		b.WriteString(",nics=" + r.nics)
	}
	b.WriteString(r.features + r.cdi)
	return strings.TrimPrefix(b.String(), ",")
}

// Count returns how many GPUs or slices are asked for, of a gang by all parts
// together; 0 if the node decides ("all"), and for a request of no GPUs.
func (r Request) Count() int {
	switch r.kind {
	case kindIDs:
		return len(r.IDs())
	case kindGang:
		return countAll(r.Parts())
	}
	return r.count
}

// IsZero reports whether r isn't the result of a successful [Parse].
func (r Request) IsZero() bool { return r.kind == kindZero }

// IsAll reports whether every device is asked for.
func (r Request) IsAll() bool { return r.kind == kindAll }

// GPUs reports whether GPUs or slices are asked for, and not CDI devices or NICs alone.
func (r Request) GPUs() bool {
	if r.kind == kindGang {
		return slices.ContainsFunc(r.Parts(), Request.GPUs)
	}
	return r.kind != kindZero && r.kind != kindOther
}

// IDs returns the devices that are asked for by name, in the order and the
// canonical form of the request: "3", "0:1", "GPU-…", "0000:1b:00.0". It is nil if
// devices are asked for in another way.
func (r Request) IDs() []string {
	if r.kind != kindIDs {
		return nil
	}
	return strings.Split(r.word, ",")
}

// Model returns the model's word, lower case, "" if any will do.
func (r Request) Model() string {
	if r.kind != kindModel {
		return ""
	}
	return r.word
}

// Profile returns the MIG profile that is asked for, "" if none is.
func (r Request) Profile() string {
	if r.kind != kindProfile {
		return ""
	}
	return r.word
}

// IsGang reports whether the request has parts.
func (r Request) IsGang() bool { return r.kind == kindGang }

// IsByID reports whether devices are asked for by name: [Request.IDs] has them.
func (r Request) IsByID() bool { return r.kind == kindIDs }

// Single returns the request for one GPU or slice like those that r asks for, without
// NICs, CDI devices and features. What r asks for by name or as a whole stays.
func (r Request) Single() Request {
	r.nics, r.cdi, r.features = "", "", ""
	r.count = min(r.count, 1)
	return r
}

// Conditions returns the conditions on memory, as text: "mem>=40G".
func (r Request) Conditions() []string {
	var all []string
	for _, m := range r.mem {
		if m != (memory{}) {
			all = append(all, m.String())
		}
	}
	return all
}
