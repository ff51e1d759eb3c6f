package bundle

import (
	"encoding/json"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// Encode writes what the standard encoder would.
func TestEncode(t *testing.T) {
	spec := Spec(sample())
	spec.Domainname = "example.org"
	spec.Hooks = &specs.Hooks{Poststop: []specs.Hook{{Path: "/bin/true"}}}
	want, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Encode(spec)
	if diff := cmp.Diff(string(want), string(got)); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if _, err := Encode(&specs.Spec{Windows: &specs.Windows{}}); err == nil {
		t.Error("a part of the spec is lost without an error")
	}
}

// No field of the specification is forgotten: what isn't encoded is refused.
func TestDocumentIsComplete(t *testing.T) {
	ours, theirs := reflect.TypeFor[document](), reflect.TypeFor[specs.Spec]()
	refused := []string{"Solaris", "Windows", "VM", "ZOS", "FreeBSD"}
	for i := range theirs.NumField() {
		f := theirs.Field(i)
		own, encoded := ours.FieldByName(f.Name)
		switch {
		case encoded == slices.Contains(refused, f.Name):
			t.Errorf("%s is neither encoded nor refused", f.Name)
		case encoded && (own.Type != f.Type || own.Tag.Get("json") != f.Tag.Get("json")):
			t.Errorf("%s is %v %q, not %v %q", f.Name, own.Type, own.Tag, f.Type, f.Tag)
		}
	}
}
