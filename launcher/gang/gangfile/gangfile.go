// Package gangfile reads files that describe gangs of unequal roles: a pipeline whose
// stages run on different GPUs, for instance.
//
//	name = "pipeline"
//	image = "pytorch"            # of roles that name none
//
//	[[role]]
//	name = "decode"
//	command = ["python", "decode.py"]
//
//	[[role]]
//	name = "infer"
//	replicas = 2
//	gpus = "2"
//	command = ["python", "infer.py"]
//
// Parsing is pure: no path or image of the file is opened. An unknown key is an error, because a
// mistyped limit would not limit anything. Numbers may be quoted or not: gpus = 2 is gpus = "2".
package gangfile

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// File describes a gang. Sizes, requests and the like have the syntax of the flags of the same names; ""
// and zero mean the same as no flag.
type File struct {
	Name    string `toml:"name"`
	Image   string `toml:"image"`
	Network string `toml:"network"`
	NICs    string `toml:"nics"`
	ShmSize string `toml:"shm-size"`
	Restart string `toml:"restart"`
	Timeout string `toml:"timeout"`
	// World is "role", the default: a world for the replicas of each role, or "gang": one world for all
	// ranks with GPUs.
	World string `toml:"world"`
	// BindGPUs is "gang", the default: a rank sees the GPUs of its world, or "rank": only its own.
	BindGPUs string            `toml:"bind-gpus"`
	Env      map[string]string `toml:"env"`
	Labels   map[string]string `toml:"labels"`
	Volumes  []string          `toml:"volumes"`
	Roles    []Role            `toml:"role"`
}

// Role is one part of a gang.
type Role struct {
	Name       string            `toml:"name"`
	Replicas   *int              `toml:"replicas"` // nil is one
	GPUs       string            `toml:"gpus"`     // of each replica
	Image      string            `toml:"image"`
	Command    []string          `toml:"command"`
	Entrypoint []string          `toml:"entrypoint"`
	Env        map[string]string `toml:"env"`
	Volumes    []string          `toml:"volumes"`
	Workdir    string            `toml:"workdir"`
	User       string            `toml:"user"`
	Memory     string            `toml:"memory"`
	CPUs       float64           `toml:"cpus"`
	CPUSet     string            `toml:"cpuset-cpus"`
	StopSignal string            `toml:"stop-signal"`
	ReadOnly   bool              `toml:"read-only"`
	Init       bool              `toml:"init"`
}

// Limits of a gang, and of the file.
const (
	MaxRanks = 256
	maxFile  = 1 << 20
	maxName  = 40
)

// Parse parses a gang file.
func Parse(r io.Reader) (File, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return File{}, err
	}
	if len(data) > maxFile {
		return File{}, fmt.Errorf("it is longer than %d bytes", maxFile)
	}
	var said map[string]any
	if err := toml.Unmarshal(data, &said); err != nil {
		text := strings.TrimPrefix(err.Error(), "toml: ")
		var bad *toml.DecodeError
		if errors.As(err, &bad) {
			line, _ := bad.Position()
			return File{}, fmt.Errorf("line %d: %s", line, text)
		}
		return File{}, errors.New(text)
	}
	var f File
	if err := decodeTable(reflect.ValueOf(&f).Elem(), said); err != nil {
		return File{}, err
	}
	return f, f.checkFile()
}

// checkFile checks combinations of keys. Single values are checked where they are parsed.
func (f File) checkFile() error {
	if len(f.Roles) == 0 {
		return errors.New("it has no [[role]]")
	}
	for _, word := range []struct{ key, value, other string }{{"world", f.World, "role"}, {"bind-gpus", f.BindGPUs, "rank"}} {
		if word.value != "" && word.value != "gang" && word.value != word.other {
			return fmt.Errorf("%s = %q is not known: it is %q or %q", word.key, word.value, "gang", word.other)
		}
	}
	var names []string
	ranks := 0
	if name, ok := badVariable(f.Env); ok {
		return fmt.Errorf("env: %q is no name of a variable", name)
	}
	for i, r := range f.Roles {
		name, bad := badVariable(r.Env)
		switch {
		case r.Name == "":
			return fmt.Errorf("role %d has no name", i+1)
		case !validName(r.Name):
			return fmt.Errorf("role %q: a name has at most %d lower-case letters, digits and \"-\", begins with a letter and doesn't end with \"-\"", r.Name, maxName)
		case slices.Contains(names, r.Name):
			return fmt.Errorf("two roles are named %q", r.Name)
		case r.Count() < 1:
			return fmt.Errorf("role %q has %d replicas", r.Name, r.Count())
		case r.Image == "" && f.Image == "":
			return fmt.Errorf("role %q has no image, and the gang has none for all", r.Name)
		case bad:
			return fmt.Errorf("role %q: env: %q is no name of a variable", r.Name, name)
		}
		names = append(names, r.Name)
		if ranks += min(r.Count(), MaxRanks+1); ranks > MaxRanks {
			return fmt.Errorf("more than %d ranks", MaxRanks)
		}
	}
	return nil
}

// badVariable returns a name that can't be the name of an environment variable.
func badVariable(env map[string]string) (name string, ok bool) {
	for name := range env {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			return name, true
		}
	}
	return "", false
}

// Count returns the number of the role's ranks.
func (r Role) Count() int {
	if r.Replicas == nil {
		return 1
	}
	return *r.Replicas
}

// validName reports whether a role's name can be a part of a hostname.
func validName(s string) bool {
	return len(s) <= maxName && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == "" &&
		s[0] >= 'a' && s[0] <= 'z' && s[len(s)-1] != '-'
}
