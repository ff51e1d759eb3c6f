package image

import "testing"

// TestNegativeSize: a registry that gives a document a negative size is refused.
func TestNegativeSize(t *testing.T) {
	d := descriptor{Digest: "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", Size: -1}
	if err := checkDocument(d); err == nil {
		t.Error("no error")
	}
}
