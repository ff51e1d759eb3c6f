package image

import (
	"fmt"
	"runtime"
	"strings"
)

// platform is the platform of an image, or a requested platform.
type platform struct {
	OS           string `json:"os"`
	Architecture string `json:"architecture"`
	Variant      string `json:"variant,omitempty"`
}

// parsePlatform parses "OS/ARCH[/VARIANT]" or "ARCH"; "" means this machine's platform.
func parsePlatform(text string) (platform, error) {
	if text == "" {
		return platform{OS: "linux", Architecture: runtime.GOARCH}, nil
	}
	parts := strings.Split(strings.ToLower(text), "/")
	if len(parts) == 1 {
		parts = []string{"linux", parts[0]}
	}
	if len(parts) > 3 || strings.Trim(strings.Join(parts, ""), "abcdefghijklmnopqrstuvwxyz0123456789_.-") != "" {
		return platform{}, fmt.Errorf("platform %q is not OS/ARCHITECTURE, such as linux/arm64", text)
	}
	for _, part := range parts {
		if part == "" {
			return platform{}, fmt.Errorf("platform %q has an empty part", text)
		}
	}
	p := platform{OS: parts[0], Architecture: parts[1]}
	if len(parts) == 3 {
		p.Variant = parts[2]
	}
	return p.normalize(), nil
}

// normalize replaces synonyms, as other engines do.
func (p platform) normalize() platform {
	switch p.Architecture {
	case "x86_64", "x86-64":
		p.Architecture = "amd64"
	case "aarch64":
		p.Architecture = "arm64"
	}
	if p.Architecture == "arm64" && p.Variant == "v8" || p.Architecture == "amd64" && p.Variant == "v1" {
		p.Variant = ""
	}
	return p
}

// suits reports whether an image for p can be used for the requested platform want. An empty field of either
// matches everything.
func (p platform) suits(want platform) bool {
	p = p.normalize()
	same := func(has, want string) bool { return has == "" || want == "" || has == want }
	return same(p.OS, want.OS) && same(p.Architecture, want.Architecture) && same(p.Variant, want.Variant)
}

func (p platform) String() string {
	name := p.OS + "/" + p.Architecture
	if p.Variant != "" {
		name += "/" + p.Variant
	}
	return name
}
