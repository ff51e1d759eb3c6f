package gpu

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/internal/spell"
)

// Capabilities is a set of the driver's abilities that a container wants, in the words of the
// images' NVIDIA_DRIVER_CAPABILITIES. They select the libraries, programs and nodes that the
// container gets; package cdi has the table.
type Capabilities uint8

// The capabilities. The zero Capabilities holds none.
const (
	Compute  Capabilities = 1 << iota // CUDA, OpenCL
	Compat32                          // 32-bit libraries
	Graphics                          // OpenGL, EGL, Vulkan
	Utility                           // NVML, nvidia-smi
	Video                             // encoding and decoding
	Display                           // X
	NGX
)

const allCapabilities = NGX<<1 - 1

// capabilityWords are in the order of the bits.
func capabilityWords() []string {
	return []string{"compute", "compat32", "graphics", "utility", "video", "display", "ngx"}
}

// ParseCapabilities reads a list with commas. An empty list means compute and utility, the default
// of images that don't set the variable. "all" means all capabilities. Case and blanks around words
// are ignored. An unknown word is an error that names the known ones.
func ParseCapabilities(s string) (Capabilities, error) {
	known := capabilityWords()
	var c Capabilities
	for word := range strings.SplitSeq(s, ",") {
		word = strings.ToLower(strings.TrimSpace(word))
		i := slices.Index(known, word)
		switch {
		case i >= 0:
			c |= 1 << i
		case word == "all":
			c = allCapabilities
		case word != "":
			return 0, fmt.Errorf("unknown driver capability %s; known: %s, all", spell.Quote(word, 64), strings.Join(known, ", "))
		}
	}
	if c == 0 {
		c = Compute | Utility
	}
	return c, nil
}

// String is "all", or the words with commas, always in the same order; of no capability it is
// "none". [ParseCapabilities] parses every result except "none".
func (c Capabilities) String() string {
	switch c {
	case 0:
		return "none"
	case allCapabilities:
		return "all"
	}
	var words []string
	for i, word := range capabilityWords() {
		if c.Has(1 << i) {
			words = append(words, word)
		}
	}
	return strings.Join(words, ",")
}

// Has reports whether all of d are in c.
func (c Capabilities) Has(d Capabilities) bool { return c&d == d }
