// Package registry has the types for image registries that all programs of berth need: the names of images
// ([Parse]), the settings for registries ([Access]), and the errors on which callers branch. It reads from no
// registry and links no HTTP client; package resolver does both.
package registry

import "errors"

// Errors that callers branch on. All other errors of a pull are about the connection.
var (
	// ErrDenied means that the registry requires other credentials. Some registries also deny access to
	// repositories that don't exist.
	ErrDenied = errors.New("access denied")
	// ErrNotFound means that the registry has no such repository, tag or blob.
	ErrNotFound = errors.New("not found")
	// ErrPlain means that the registry uses HTTP without TLS.
	ErrPlain = errors.New("doesn't speak TLS")
	// ErrCertificate means that the registry's certificate is not trusted.
	ErrCertificate = errors.New("certificate isn't trusted")
	// ErrUnknownHost means that the registry's name doesn't resolve to an address.
	ErrUnknownHost = errors.New("no such host")
	// ErrUnreachable means that no connection to the registry's address can be made.
	ErrUnreachable = errors.New("can't be reached")
)

// Access has the settings for registries. The zero value uses no credentials and no configuration. Proxies are
// those of the environment.
type Access struct {
	// Credentials are files of docker's or podman's format. The first file with an entry for a registry is
	// used. Missing files are skipped.
	Credentials []CredentialFile
	// LoginFile is the file in which a login is stored.
	LoginFile CredentialFile
	// HostDirs are directories with a subdirectory for each registry, named HOST, HOST:PORT, HOST_PORT_ or
	// _default. It has a hosts.toml (containerd's format) or certificates (docker's: *.crt, *.cert, *.key).
	// The first subdirectory that exists is used.
	HostDirs []string
	// Agent is the User-Agent of requests; "" means berth.
	Agent string
}

// CredentialFile is a file with credentials for registries.
type CredentialFile struct {
	Path string
	// User is the user with whose rights the file is opened and its credential helpers are run; nil means the
	// user of this process. Only root can use others.
	User *User `json:",omitempty"`
}

// User is a user of this machine.
type User struct {
	UID, GID uint32
	Home     string // "" if it isn't known
}

// Descriptor identifies a document or blob of a repository.
type Descriptor struct {
	MediaType string
	// Digest is "ALGORITHM:HEX", Size in bytes.
	Digest string
	Size   int64
}
