package spec

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// Encode writes what the standard encoder would.
func TestEncode(t *testing.T) {
	spec := New(sample())
	spec.Domainname = "example.org"
	spec.Hooks = &specs.Hooks{Poststop: []specs.Hook{{Path: "/bin/true"}}}
	for _, spec := range []*specs.Spec{spec, {Windows: &specs.Windows{LayerFolders: []string{"C:\\"}}}} {
		want, err := json.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Encode(spec)
		if diff := cmp.Diff(string(want), string(got)); err != nil || diff != "" {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
	}
}
