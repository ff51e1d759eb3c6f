package spec

import (
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-gpu/berth/internal/json"
)

// Encode writes a spec as a bundle's config.json has it.
func Encode(s *specs.Spec) ([]byte, error) {
	data, err := new(json.Codec).Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode spec: %w", err)
	}
	return data, nil
}
