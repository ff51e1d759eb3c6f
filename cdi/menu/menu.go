// Package menu writes the CDI specs of berth's own devices: names that stand for requests. CDI
// wants every name listed beforehand, so there is a finite menu of counts, models, MIG profiles and
// single devices.
//
// None of the devices names a node or a file. Each has one hook with the request as its argument:
// under a plain runtime the hook takes the lease; berth's wrapper reads the request and removes the
// hook. So the spec doesn't depend on the driver's version or device numbers, and two containers
// with the same CDI device get two leases.
//
// It is pure: the same inventory gives the same bytes.
package menu

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	cdispecs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/berth-gpu/berth/gpu"
)

// Hook is the base name of berth's hook. Entries of berth's in a spec are recognised by it.
const Hook = "berth-hook"

// The kinds of berth's devices.
const (
	KindGPUs = "berth/gpus" // requests
	KindWith = "berth/with" // features and NICs to go with a request
	// KindNVIDIA is the kind that NVIDIA's own tools use, for configurations with their names:
	// nvidia.com/gpu=0, =all, =GPU-….
	KindNVIDIA = "nvidia.com/gpu"
)

// version of the CDI specification: the first with names that begin with a digit.
// podman 4.3's library knows no newer one; podman 5, docker and containerd take it too.
const version = "0.5.0"

// Options of [Spec].
type Options struct {
	// Hook is the absolute path of berth-hook.
	Hook string
	// Features are those that the admin allows, canonical.
	Features []string
}

// Spec is the CDI spec of one kind for the node, as a JSON file; nil if the node
// has no device of the kind.
func Spec(kind string, inv gpu.Inventory, o Options) ([]byte, error) {
	var devices []cdispecs.Device
	for _, e := range listEntries(kind, inv, o) {
		devices = append(devices, cdispecs.Device{Name: e.name, ContainerEdits: cdispecs.ContainerEdits{
			Hooks: []*cdispecs.Hook{{
				HookName: "createRuntime", Path: o.Hook,
				Args: []string{Hook, "createRuntime", e.flag, e.value},
			}},
		}})
	}
	if len(devices) == 0 {
		return nil, nil
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(cdispecs.Spec{Version: version, Kind: kind, Devices: devices}); err != nil {
		return nil, fmt.Errorf("write CDI spec of %s: %w", kind, err)
	}
	return b.Bytes(), nil
}

// FileName returns the name of a kind's spec file in a CDI directory.
func FileName(kind string) string {
	return "berth-" + strings.NewReplacer("/", "-", ".", "-").Replace(strings.TrimPrefix(kind, "berth/")) + ".json"
}

// entry is one name and its request.
type entry struct{ name, flag, value string }

func listEntries(kind string, inv gpu.Inventory, o Options) []entry {
	m := &menu{}
	switch kind {
	case KindGPUs:
		m.addGPUs(inv)
	case KindNVIDIA:
		m.addNVIDIANames(inv)
	case KindWith:
		for _, f := range o.Features {
			m.addEntry(strings.ReplaceAll(f, "=", ":"), "--with", f)
		}
		m.addNICs(inv)
	}
	return m.entries
}

type menu struct{ entries []entry }

// addEntry adds an entry unless its name is invalid in CDI or was added before.
func (m *menu) addEntry(name, flag, value string) {
	if name == "" || !isValidName(name) || slices.ContainsFunc(m.entries, func(e entry) bool { return e.name == name }) {
		return
	}
	m.entries = append(m.entries, entry{name, flag, value})
}

// addGPUs lists counts, models, profiles, then single devices.
func (m *menu) addGPUs(inv gpu.Inventory) {
	request := func(name, value string) { m.addEntry(name, "--request", value) }
	var whole int
	models, profiles := wordCounter{}, wordCounter{}
	for _, g := range inv.GPUs {
		if g.Lost == "" && !g.MIG {
			whole++
			models.countWord(gpu.ModelWord(g.Model))
		}
		for _, s := range g.Slices {
			profiles.countWord(s.Profile)
		}
	}
	for n := 1; n <= whole; n++ {
		request(strconv.Itoa(n), strconv.Itoa(n))
	}
	request("all", "all")
	for _, c := range []wordCounter{models, profiles} {
		for _, word := range c.words {
			request(word, word)
			for n := 1; n <= c.numbers[word]; n++ { // a single GPU has both names
				value := word + ":" + strconv.Itoa(n)
				request(value, value)
			}
		}
	}
	for _, g := range inv.GPUs {
		if g.Lost != "" {
			continue
		}
		request("gpu"+strconv.Itoa(g.Index), "device="+strconv.Itoa(g.Index))
		request(g.UUID, g.UUID)
		request(g.PCI, g.PCI)
		for _, s := range g.Slices {
			index := fmt.Sprintf("%d:%d", g.Index, s.Index)
			request(index, index)
			request(s.UUID, s.UUID)
		}
	}
}

// addNICs lists the requests for RDMA devices: those near the GPUs, counts, names.
func (m *menu) addNICs(inv gpu.Inventory) {
	if len(inv.NICs) == 0 {
		return
	}
	words := []string{"auto"}
	for n := range inv.NICs {
		words = append(words, strconv.Itoa(n+1))
	}
	for _, n := range inv.NICs {
		words = append(words, n.Name)
	}
	for _, word := range words {
		m.addEntry("nics:"+word, "--with", "nics="+word)
	}
}

// addNVIDIANames lists the names that NVIDIA's tools give: index, index of a slice, UUID, all. An
// index is passed by the flag --nvidia instead of --request, because the admin can let such indices
// count as a number of GPUs.
func (m *menu) addNVIDIANames(inv gpu.Inventory) {
	request := func(name, value string) { m.addEntry(name, "--request", value) }
	for _, g := range inv.GPUs {
		if g.Lost != "" {
			continue
		}
		if !g.MIG {
			m.addEntry(strconv.Itoa(g.Index), "--nvidia", "device="+strconv.Itoa(g.Index))
			request(g.UUID, g.UUID)
		}
		for _, s := range g.Slices {
			index := fmt.Sprintf("%d:%d", g.Index, s.Index)
			request(index, index)
			request(s.UUID, s.UUID)
		}
	}
	if len(m.entries) > 0 {
		request("all", "all")
	}
}

// wordCounter counts words and keeps their order.
type wordCounter struct {
	words   []string
	numbers map[string]int
}

func (c *wordCounter) countWord(word string) {
	if word == "" {
		return
	}
	if c.numbers == nil {
		c.numbers = map[string]int{}
	}
	if c.numbers[word] == 0 {
		c.words = append(c.words, word)
	}
	c.numbers[word]++
}

// isValidName reports whether the CDI specification allows the name of a device: letters,
// digits and "_-.:", beginning and ending with a letter or digit.
func isValidName(name string) bool {
	letter := func(c byte) bool { return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }
	for i := range len(name) {
		if !letter(name[i]) && !strings.ContainsRune("_-.:", rune(name[i])) {
			return false
		}
	}
	return letter(name[0]) && letter(name[len(name)-1])
}
