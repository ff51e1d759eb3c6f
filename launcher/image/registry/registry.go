// Package registry has what every program of berth knows of image registries: the names of
// images ([Parse]), how registries are reached ([Access]), and the errors that callers branch
// on. It reads from no registry and links no HTTP client; package resolver does both.
package registry

import "errors"

// Errors that callers branch on. All other errors of a pull are about the connection.
var (
	// ErrDenied: the registry wants other credentials, or has no such repository and does not
	// tell strangers so.
	ErrDenied = errors.New("access denied")
	// ErrNotFound: the registry has no such repository, tag or blob.
	ErrNotFound = errors.New("not found")
	// ErrPlain: the registry speaks HTTP without TLS.
	ErrPlain = errors.New("doesn't speak TLS")
	// ErrCertificate: the registry's certificate is not trusted.
	ErrCertificate = errors.New("certificate isn't trusted")
	// ErrUnknownHost: the registry's name does not resolve to an address.
	ErrUnknownHost = errors.New("no such host")
	// ErrUnreachable: there is no connection to the registry's address.
	ErrUnreachable = errors.New("can't be reached")
)

// Access says how registries are reached. The zero value uses no credentials and no
// configuration. Proxies are those of the environment.
type Access struct {
	// Credentials are files of docker's or podman's format. The first that knows a registry
	// is taken; a missing file knows none.
	Credentials []CredentialFile
	// LoginFile is the file that a login is kept in.
	LoginFile CredentialFile
	// HostDirs are directories with one directory for each registry, named HOST, HOST:PORT,
	// HOST_PORT_ or _default. It has a hosts.toml (containerd's format) or certificates
	// (docker's: *.crt, *.cert, *.key). The first of HostDirs that has one is taken.
	HostDirs []string
	// Agent is the User-Agent of requests; "" means berth.
	Agent string
}

// CredentialFile is a file with credentials for registries.
type CredentialFile struct {
	Path string
	// User opens the file and runs the credential helpers that it names; nil is the user of
	// this process. Only root can act for others.
	User *User `json:",omitempty"`
}

// User is a user of this machine.
type User struct {
	UID, GID uint32
	Home     string // "" if it isn't known
}

// Descriptor says which document or blob of a repository is meant.
type Descriptor struct {
	MediaType string
	// Digest is "ALGORITHM:HEX", Size in bytes.
	Digest string
	Size   int64
}
