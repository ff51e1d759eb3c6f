package image

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	ocidigest "github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	"pgregory.net/rapid"
)

// Digests are parsed and verified as by the specification's own package.
func TestDigestAsSpecified(t *testing.T) {
	hexOf := func(n int) string { return strings.Repeat("0f", n) }
	for _, text := range []string{
		"", ":", "sha256", "sha256:", "md5:" + hexOf(16), ":" + hexOf(32), "SHA256:" + hexOf(32),
		"sha256:" + hexOf(32), "sha384:" + hexOf(48), "sha512:" + hexOf(64), "sha256:" + hexOf(31), "sha256:" + hexOf(33),
		"sha256:" + strings.Repeat("0F", 32), "sha256:../" + hexOf(30) + "a", "sha256:" + hexOf(31) + "0g", "sha256:" + hexOf(32) + "\n",
		"sha256:sha256:" + hexOf(32), "sha512:" + hexOf(32),
	} {
		if got, want := digest(text).validate(), ocidigest.Digest(text).Validate(); (got == nil) != (want == nil) {
			t.Errorf("%q: %v, and the specification's package says %v", text, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		data := rapid.SliceOf(rapid.Byte()).Draw(t, "data")
		for _, a := range []ocidigest.Algorithm{ocidigest.SHA256, ocidigest.SHA384, ocidigest.SHA512} {
			d := digest(a.FromBytes(data))
			if d.validate() != nil || !d.matches(data) || d.matches(append(data, 0)) {
				t.Fatalf("%s doesn't stand for %x", d, data)
			}
		}
	})
}

func TestChainsAsSpecified(t *testing.T) {
	var diffs []digest
	var theirs []ocidigest.Digest
	for _, content := range []string{"one", "two", "three", "four"} {
		d := ocidigest.SHA512.FromString(content)
		diffs, theirs = append(diffs, digest(d)), append(theirs, d)
		var want []digest
		for _, c := range identity.ChainIDs(append([]ocidigest.Digest(nil), theirs...)) {
			want = append(want, digest(c))
		}
		if diff := cmp.Diff(want, chainIDs(diffs)); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
}
