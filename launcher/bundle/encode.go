package bundle

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// document is a spec without what other systems than Linux have in it. The encoder
// learns all types that it might meet, and those are a third.
type document struct {
	Version     string            `json:"ociVersion"`
	Process     *specs.Process    `json:"process,omitempty"`
	Root        *specs.Root       `json:"root,omitempty"`
	Hostname    string            `json:"hostname,omitempty"`
	Domainname  string            `json:"domainname,omitempty"`
	Mounts      []specs.Mount     `json:"mounts,omitempty"`
	Hooks       *specs.Hooks      `json:"hooks,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Linux       *specs.Linux      `json:"linux,omitempty"`
}

// Encode writes a spec as a bundle's config.json has it.
func Encode(s *specs.Spec) ([]byte, error) {
	if s.Solaris != nil || s.Windows != nil || s.VM != nil || s.ZOS != nil || s.FreeBSD != nil {
		return nil, errors.New("encode spec: it is not only for Linux")
	}
	data, err := json.Marshal(document{
		Version: s.Version, Process: s.Process, Root: s.Root, Hostname: s.Hostname, Domainname: s.Domainname,
		Mounts: s.Mounts, Hooks: s.Hooks, Annotations: s.Annotations, Linux: s.Linux,
	})
	if err != nil {
		return nil, fmt.Errorf("encode spec: %w", err)
	}
	return data, nil
}

// Learn has the encoder learn a spec's types, which is half of the work of encoding
// one, for who can do so beside other work.
func Learn() { _, _ = json.Marshal(document{}) } // Encode reports errors
