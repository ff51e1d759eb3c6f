package bundle

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
)

func TestLockNoticesChanges(t *testing.T) {
	tests := []struct {
		name   string
		change func(t *testing.T, dir string)
		want   bool
	}{
		{"nothing", func(*testing.T, string) {}, false},
		{"written in place", func(t *testing.T, dir string) { put(t, dir+"/config.json", `{"ociVersion":"1.9.9"}`) }, true},
		{"rewritten by another", func(t *testing.T, dir string) { rewrite(t, dir, "B=2") }, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			put(t, filepath.Join(dir, "config.json"), plain)
			b := open(t, dir)
			tt.change(t, dir)
			changed, err := b.Lock()
			if err != nil || changed != tt.want {
				t.Errorf("changed: %v (%v), want %v", changed, err, tt.want)
			}
			if now := get(t, dir+"/config.json"); string(b.now.raw) != now {
				t.Errorf("read %s, there is %s", b.now.raw, now)
			}
		})
	}
}

func TestAnnotate(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"none", `{"a":1}`, `{"annotations":{"k":"v"},"a":1}`},
		{"null", `{"annotations": null}`, `{"annotations": {"k":"v"}}`},
		{"empty", `{"annotations":{ }}`, `{"annotations":{"k":"v"}}`},
		{"others", `{"annotations":{"x": "y"}}`, `{"annotations":{"k":"v","x": "y"}}`},
		{"set before", `{"annotations":{"k": "old","x":"y"}}`, `{"annotations":{"k":"v","x":"y"}}`},
		{"empty document", ` { } `, ` {"annotations":{"k":"v"} } `},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := string(setAnnotation([]byte(tt.text), "k", "v")); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestSealHoldsForOneOriginal(t *testing.T) {
	d := parse(t, plain)
	spec, err := d.Spec()
	if err != nil {
		t.Fatal(err)
	}
	spec.Process.Env = []string{"X=" + SealAnnotation}
	spec.Annotations = map[string]string{SealAnnotation: "forged"}
	edited, err := d.Edit(spec)
	if err != nil {
		t.Fatal(err)
	}
	sealed := d.sealEdited(edited)
	other := parse(t, strings.Replace(plain, "A=1", "A=2", 1))
	if !sealed.isSealedFrom(d) || sealed.isSealedFrom(other) || d.isSealedFrom(d) {
		t.Error("the seal doesn't tell originals apart")
	}
	for i := range sealed.raw {
		changed := &Document{raw: bytes.Clone(sealed.raw)}
		changed.raw[i] ^= 1
		if checkSyntax(changed.raw) == nil && changed.isSealedFrom(d) {
			t.Errorf("a change at byte %d isn't noticed", i)
		}
	}
}
