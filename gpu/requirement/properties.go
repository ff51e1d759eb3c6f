package requirement

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/gpu"
)

// properties are what an image's requirements are compared with: the driver's and
// those of one device.
type properties struct {
	cuda, driver, arch string
	brands             []string
	device             string // for people, "" if it is about the driver alone
}

// propertiesOf returns those of each GPU that was leased, as a whole or in slices,
// once; without any, those of the driver. A device that the node no longer has is
// known by what the lease says of it.
func propertiesOf(inv gpu.Inventory, leased []gpu.Device) []properties {
	node := properties{cuda: inv.Driver.CUDA, driver: inv.Driver.Version}
	if len(leased) == 0 {
		return []properties{node}
	}
	var all []properties
	for i, d := range leased {
		uuid := cmp.Or(d.Parent, d.UUID)
		seen := func(e gpu.Device) bool { return cmp.Or(e.Parent, e.UUID) == uuid }
		if slices.ContainsFunc(leased[:i], seen) {
			continue
		}
		p := node
		model := d.Model
		if g, _, ok := inv.Lookup(uuid); ok {
			model, p.arch = g.Model, g.ComputeCapability
		}
		p.brands = brandNames(model)
		index, _, _ := strings.Cut(d.Index, ":")
		p.device = "GPU " + index
		all = append(all, p)
	}
	return all
}

func (p properties) versionOf(key string) string {
	switch key {
	case "cuda":
		return p.cuda
	case "driver":
		return p.driver
	}
	return p.arch
}

func (p properties) String() string {
	unknown := func(s string) string { return cmp.Or(s, "unknown") }
	text := "cuda " + unknown(p.cuda) + ", driver " + unknown(p.driver)
	if p.device != "" {
		text += " and " + p.device + " with arch " + unknown(p.arch) + ", brand " + strings.Join(p.brands, " or ")
	}
	return text
}

// Brand returns a word for the brand of a model, as in "tesla", or "unknown".
func Brand(model string) string { return brandNames(model)[0] }

// brandNames returns NVML's words for the brand of a model. The driver's versions don't
// agree whether a GeForce RTX is a "geforce" or a "geforcertx": it is both.
func brandNames(model string) []string {
	words := gpu.NameWords(model)
	for _, family := range []string{"geforce", "quadro", "titan", "tesla", "grid", "nvs", "nvidia"} {
		switch {
		case !slices.Contains(words, family):
		case slices.Contains(words, "rtx"):
			return []string{family, family + "rtx"}
		default:
			return []string{family}
		}
	}
	return []string{"unknown"}
}

// version is numbers joined by dots, most significant first.
type version []uint64

// parseVersion reads up to eight numbers.
func parseVersion(s string) (version, bool) {
	parts := strings.SplitN(s, ".", 9)
	v := make(version, len(parts))
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 10, 32)
		if err != nil {
			return nil, false
		}
		v[i] = n
	}
	return v, len(parts) <= 8
}

// compareTo orders versions; a number that is missing is 0.
func (v version) compareTo(w version) int {
	at := func(v version, i int) uint64 {
		if i < len(v) {
			return v[i]
		}
		return 0
	}
	for i := range max(len(v), len(w)) {
		if order := cmp.Compare(at(v, i), at(w, i)); order != 0 {
			return order
		}
	}
	return 0
}
