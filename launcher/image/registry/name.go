package registry

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Name is a full image name. A name with a digest has no tag.
type Name struct {
	// Host is the registry's host, with its port if one was given.
	Host string
	// Repository is the path in the registry.
	Repository string
	// Tag is "" only with a digest.
	Tag, Digest string
}

// DockerHub is the host in names of images of Docker Hub. Its registry is at registry-1.docker.io.
const DockerHub = "docker.io"

// The parts that a short name omits, beside DockerHub.
const (
	official   = "library/"
	defaultTag = "latest"
)

// Limits of Docker's grammar of names.
const (
	maxRepository = 255
	maxTag        = 128
)

// Parse parses a name as docker does: "debian:13" is docker.io/library/debian:13. A first part that has a dot
// or a colon, or is localhost, is a registry.
func Parse(text string) (Name, error) {
	fail := func(why string) (Name, error) { return Name{}, fmt.Errorf("%q is no image name: %s", text, why) }
	rest, digest, pinned := strings.Cut(text, "@")
	if pinned && !validDigest(digest) {
		return fail("after @ belongs a digest, such as sha256: and 64 hexadecimal digits")
	}
	n := Name{Host: DockerHub, Digest: digest}
	if first, after, ok := strings.Cut(rest, "/"); ok && isHost(first) {
		n.Host, rest = first, after
	}
	if i := strings.LastIndexByte(rest, ':'); i > strings.LastIndexByte(rest, '/') {
		rest, n.Tag = rest[:i], rest[i+1:]
		if !validTag(n.Tag) {
			return fail("a tag has letters, digits, \"_\", \".\" and \"-\", at most 128, and doesn't begin with \".\" or \"-\"")
		}
	}
	if n.Host == "index.docker.io" {
		n.Host = DockerHub
	}
	if n.Host == DockerHub && !strings.Contains(rest, "/") {
		rest = official + rest
	}
	n.Repository = rest
	switch {
	case !validHost(n.Host):
		return fail("the registry is no host name")
	case strings.ToLower(rest) != rest:
		return fail("a repository is written in lower case")
	case !validRepository(rest):
		return fail("a repository has lower case letters and digits, separated by \".\", \"_\", \"-\" and \"/\"")
	}
	if pinned {
		n.Tag = ""
	} else if n.Tag == "" {
		n.Tag = defaultTag
	}
	return n, nil
}

// HubAliases lists the hosts under which Docker Hub is known, DockerHub first.
func HubAliases() []string { return []string{DockerHub, "index.docker.io", "registry-1.docker.io"} }

// TrimAddress removes scheme and API version from the address of a registry:
// "https://index.docker.io/v1/" becomes "index.docker.io".
func TrimAddress(address string) string {
	address = strings.TrimPrefix(strings.TrimPrefix(address, "https://"), "http://")
	return strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(address, "/"), "/v1"), "/v2")
}

// ParseHost parses the argument of a login: a host with an optional port, or an address such as
// https://registry.example/v2/. "" means DockerHub.
func ParseHost(text string) (string, error) {
	host := TrimAddress(text)
	switch {
	case text == "", slices.Contains(HubAliases(), host):
		return DockerHub, nil
	case strings.Contains(host, "/"):
		return "", fmt.Errorf("%q is no registry: a login is for a whole registry, such as registry.example:5000", text)
	case !validHost(host):
		return "", fmt.Errorf("%q is no registry: it is no host name", text)
	}
	return host, nil
}

// String returns the full name. Parse of it returns the same Name.
func (n Name) String() string { return n.Host + "/" + n.Repository + n.version() }

// Short returns the name without the parts that Parse adds.
func (n Name) Short() string {
	repository := n.Host + "/" + n.Repository
	if n.Host == DockerHub {
		repository = strings.TrimPrefix(n.Repository, official)
		if first, _, ok := strings.Cut(repository, "/"); ok && isHost(first) {
			repository = n.Host + "/" + n.Repository
		}
	}
	return repository + n.version()
}

func (n Name) version() string {
	if n.Digest != "" {
		return "@" + n.Digest
	}
	return ":" + n.Tag
}

// isHost reports whether the first part of a name is a registry, and not a part of a path.
func isHost(part string) bool {
	return strings.ContainsAny(part, ".:") || part == "localhost" || strings.ToLower(part) != part
}

func validHost(host string) bool {
	name, port := host, ""
	if i := strings.LastIndexByte(host, ':'); i >= 0 && !strings.HasSuffix(host, "]") {
		name, port = host[:i], host[i+1:]
		if port == "" || len(port) > 5 || strings.Trim(port, "0123456789") != "" {
			return false
		}
	}
	if inner, ok := strings.CutPrefix(name, "["); ok {
		inner, ok = strings.CutSuffix(inner, "]")
		ip, err := netip.ParseAddr(inner)
		return ok && err == nil && ip.Zone() == ""
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || strings.Trim(label, lower+upper+digits+"-") != "" || strings.Trim(label, "-") != label {
			return false
		}
	}
	return len(host) <= maxRepository
}

const (
	lower  = "abcdefghijklmnopqrstuvwxyz"
	upper  = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	digits = "0123456789"
)

func validRepository(path string) bool {
	if len(path) > maxRepository {
		return false
	}
	for part := range strings.SplitSeq(path, "/") {
		if !validPart(part) {
			return false
		}
	}
	return true
}

// validPart reports whether part consists of runs of letters and digits, separated by one ".", one or two "_",
// or any number of "-".
func validPart(part string) bool {
	const word = lower + digits
	for {
		rest := strings.TrimLeft(part, word)
		if rest == part {
			return false
		}
		if rest == "" {
			return true
		}
		part = strings.TrimLeft(rest, "._-")
		switch separator := rest[:len(rest)-len(part)]; {
		case separator == ".", separator == "_", separator == "__":
		case separator == "" || strings.Trim(separator, "-") != "":
			return false
		}
	}
}

func validTag(tag string) bool {
	const word = lower + upper + digits + "_"
	return tag != "" && len(tag) <= maxTag && strings.Contains(word, tag[:1]) && strings.Trim(tag, word+".-") == ""
}

func validDigest(digest string) bool {
	algorithm, encoded, _ := strings.Cut(digest, ":")
	length := map[string]int{"sha256": 32, "sha384": 48, "sha512": 64}[algorithm]
	return length > 0 && len(encoded) == hex.EncodedLen(length) && strings.Trim(encoded, digits+"abcdef") == ""
}
