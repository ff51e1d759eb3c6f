package image

import (
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"hash"
	"path"
	"strings"
)

// The types below have the fields that are used of the documents of the OCI image specification 1.1 and
// Docker's schema 2, which are the same in both. The specification's Go package isn't used, because it
// compiles regular expressions at the start of each process, which takes as long as finding an image.

// Media types of the OCI image specification.
const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar"
)

// Media types of Docker's images, schema 2.
const (
	dockerList     = "application/vnd.docker.distribution.manifest.list.v2+json"
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	dockerConfig   = "application/vnd.docker.container.image.v1+json"
)

// Names of files in an OCI layout.
const (
	layoutFile = "oci-layout"
	indexFile  = "index.json"
	blobsDir   = "blobs"
)

// Config is the part of an image's configuration that is about its containers.
type Config struct {
	// User is "user[:group]", names or numbers.
	User string `json:"User"`
	// Env entries are "K=V".
	Env []string `json:"Env"`
	// Entrypoint and Cmd together are the default command. The user's command replaces Cmd.
	Entrypoint []string `json:"Entrypoint"`
	Cmd        []string `json:"Cmd"`
	WorkingDir string   `json:"WorkingDir"`
	// StopSignal is the name or number of the stop signal; "" means SIGTERM.
	StopSignal string `json:"StopSignal"`
	// Labels are key-value pairs for tools.
	Labels map[string]string `json:"Labels"`
}

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      digest            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Platform    *platform         `json:"platform,omitempty"`
}

type index struct {
	Manifests []descriptor `json:"manifests"`
}

type manifest struct {
	Config descriptor   `json:"config"`
	Layers []descriptor `json:"layers"`
}

type configuration struct {
	platform
	Created string `json:"created"`
	Config  Config `json:"config"`
	RootFS  struct {
		DiffIDs []digest `json:"diff_ids"`
	} `json:"rootfs"`
}

// digest is "ALGORITHM:HEX". The other methods may only be called if validate returns nil.
type digest string

var (
	errDigest    = errors.New("is no digest")
	errAlgorithm = errors.New("has an unknown algorithm")
)

func (d digest) validate() error {
	name, encoded, _ := strings.Cut(string(d), ":")
	h := newHash(name)
	switch {
	case h == nil:
		return errAlgorithm
	case len(encoded) != hex.EncodedLen(h.Size()) || strings.Trim(encoded, "0123456789abcdef") != "":
		return errDigest
	}
	return nil
}

// newHash returns nil for an algorithm that the specification doesn't have.
func newHash(algorithm string) hash.Hash {
	switch algorithm {
	case "sha256":
		return sha256.New()
	case "sha384":
		return sha512.New384()
	case "sha512":
		return sha512.New()
	}
	return nil
}

func (d digest) algorithm() string { name, _, _ := strings.Cut(string(d), ":"); return name }

// path returns the path of the blob in a store or a layout, relative to the directory of blobs.
func (d digest) path() string {
	name, encoded, _ := strings.Cut(string(d), ":")
	return path.Join(name, encoded)
}

func (d digest) verifier() verifier { return verifier{Hash: newHash(d.algorithm()), want: d} }

// matches reports whether data has the digest.
func (d digest) matches(data []byte) bool {
	v := d.verifier()
	_, _ = v.Write(data) // hash.Hash never returns an error
	return v.isVerified()
}

// verifier is a writer that computes the digest of the data to compare it with want.
type verifier struct {
	hash.Hash
	want digest
}

func (v verifier) isVerified() bool { return hexDigest(v.want.algorithm(), v.Hash) == v.want }

func hexDigest(algorithm string, h hash.Hash) digest {
	return digest(algorithm + ":" + hex.EncodeToString(h.Sum(nil)))
}

// chainIDs returns the chain ids of layers, which identify each layer together with those below. The first
// is the layer's own digest; each other one is the SHA-256 of the id below, a space and the layer's own
// digest.
func chainIDs(diffs []digest) []digest {
	names := make([]digest, len(diffs))
	for i, d := range diffs {
		if names[i] = d; i > 0 {
			h := sha256.New()
			_, _ = h.Write([]byte(names[i-1] + " " + d)) // never fails
			names[i] = hexDigest("sha256", h)
		}
	}
	return names
}
