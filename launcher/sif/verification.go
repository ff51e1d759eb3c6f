package sif

import (
	"encoding/hex"
	"fmt"
	"strings"
	"time"
)

// Verification says which signatures of a file are verified (package signature), and by which keys. Without Groups and Objects, all groups of objects
// have to be signed.
type Verification struct {
	// Keyrings are files with OpenPGP keys. Of a key that is in several, the first one counts. A missing file has no keys.
	Keyrings []string `json:"keyrings,omitempty"`
	// Accepted are the fingerprints of the keys that count, in the form of [ParseFingerprint]; none means all.
	Accepted []string `json:"accepted,omitempty"`
	// PublicKey is a file with a public key in PEM, which takes the place of the OpenPGP keys.
	PublicKey string `json:"public_key,omitempty"`
	// Groups and Objects are the IDs of what has to be signed.
	Groups  []uint32 `json:"groups,omitempty"`
	Objects []uint32 `json:"objects,omitempty"`
	// Legacy verifies signatures of the older format alone, which cover no header and no descriptor. Without Groups and Objects it is the root file
	// system that has to be signed, with LegacyAll each object.
	Legacy    bool `json:"legacy,omitempty"`
	LegacyAll bool `json:"legacy_all,omitempty"`
	// Covered are partitions that one signature has to cover, if any are named: see signature.Check.
	Covered []Partition `json:"covered,omitempty"`
}

// Verdict is the result for one signature.
type Verdict struct {
	// Signer is the OpenPGP key that has made the signature, nil if it is none, or not known.
	Signer *Key `json:"signer,omitempty"`
	// Objects are those that it covers, and that are as they were signed.
	Objects []Object `json:"objects,omitempty"`
	// Changed is an object whose data isn't what was signed, nil for none.
	Changed *Object `json:"changed,omitempty"`
	// Error says why the signature isn't valid, "" if it is.
	Error string `json:"error,omitempty"`
}

// Key describes an OpenPGP key.
type Key struct {
	// Name is the user ID, such as "Ann <ann@example.org>". Its author can write anything, also control characters. It is empty if there is none.
	Name string `json:"name"`
	// Fingerprint is in upper case, as gpg prints it.
	Fingerprint string    `json:"fingerprint"`
	Created     time.Time `json:"created"`
	Bits        int       `json:"bits"` // 0 if unknown
	// Keyring is the file that has the key.
	Keyring string `json:"keyring"`
}

// KeyringChange is a change of a keyring. The zero value but for Path changes nothing.
type KeyringChange struct {
	Path string `json:"path"`
	// Import is a file with public keys that are added, or replace those with the same fingerprint; "" for none.
	Import string `json:"import,omitempty"`
	// Remove is the fingerprint of a key that is removed, "" for none.
	Remove string `json:"remove,omitempty"`
	// Public lets all users read a new file.
	Public bool `json:"public,omitempty"`
}

// ParseFingerprint returns the fingerprint of an OpenPGP key in upper case and without blanks. A key ID, which is shorter, is an error: anyone can make
// a key with the same one.
func ParseFingerprint(text string) (string, error) {
	plain := strings.ToUpper(strings.Join(strings.Fields(text), ""))
	const version4, version6 = 40, 64 // digits
	if _, err := hex.DecodeString(plain); err != nil || len(plain) != version4 && len(plain) != version6 {
		return "", fmt.Errorf("%q is no fingerprint of an OpenPGP key, which has 40 hexadecimal digits", text)
	}
	return plain, nil
}
