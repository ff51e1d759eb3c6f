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
// Reading is pure: what a file says is looked up by nobody here. A word that isn't known
// is an error, for a mistyped limit would be none.
package gangfile

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/berth-gpu/berth/internal/spell"
)

// File is a gang. Texts of sizes, requests and the like are in the words of the flags of
// the same names; "" and zero are what no flag would say.
type File struct {
	Name    string `toml:"name"`
	Image   string `toml:"image"`
	Network string `toml:"network"`
	NICs    string `toml:"nics"`
	ShmSize string `toml:"shm-size"`
	Restart string `toml:"restart"`
	Timeout string `toml:"timeout"`
	// World is "role", the default: the replicas of a role count each other; or "gang": all
	// ranks with GPUs do.
	World string `toml:"world"`
	// BindGPUs is "gang", the default: a rank sees the GPUs of its world; or "rank".
	BindGPUs string   `toml:"bind-gpus"`
	Env      Texts    `toml:"env"`
	Labels   Texts    `toml:"labels"`
	Volumes  []string `toml:"volumes"`
	Roles    []Role   `toml:"role"`
}

// Role is one part of a gang.
type Role struct {
	Name       string   `toml:"name"`
	Replicas   *int     `toml:"replicas"` // nil is one
	GPUs       string   `toml:"gpus"`     // of each replica
	Image      string   `toml:"image"`
	Command    []string `toml:"command"`
	Entrypoint []string `toml:"entrypoint"`
	Env        Texts    `toml:"env"`
	Volumes    []string `toml:"volumes"`
	Workdir    string   `toml:"workdir"`
	User       string   `toml:"user"`
	Memory     string   `toml:"memory"`
	CPUs       float64  `toml:"cpus"`
	CPUSet     string   `toml:"cpuset-cpus"`
	StopSignal string   `toml:"stop-signal"`
	ReadOnly   bool     `toml:"read-only"`
	Init       bool     `toml:"init"`
}

// Texts are texts by name. A list, as other tools' files have it, is an error; the library
// would pass it over.
type Texts map[string]string

// UnmarshalTOML implements [toml.Unmarshaler].
func (t *Texts) UnmarshalTOML(value any) error {
	table, ok := value.(map[string]any)
	if !ok {
		return errTexts
	}
	*t = Texts{}
	for name, v := range table {
		text, ok := v.(string)
		if !ok {
			return errTexts
		}
		(*t)[name] = text
	}
	return nil
}

var errTexts = errors.New("no names and texts")

// Limits of a gang, and of the file.
const (
	MaxRanks = 256
	maxFile  = 1 << 20
	maxName  = 40
)

// Parse reads a file.
func Parse(r io.Reader) (File, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return File{}, err
	}
	if len(data) > maxFile {
		return File{}, fmt.Errorf("it is longer than %d bytes", maxFile)
	}
	var f File
	meta, err := toml.Decode(string(data), &f)
	if err != nil {
		return File{}, unread(err)
	}
	if unknown := meta.Undecoded(); len(unknown) > 0 {
		return File{}, strange(unknown[0])
	}
	return f, f.check()
}

// strange says which word isn't known, and what may be meant.
func strange(key toml.Key) error {
	word := key[len(key)-1]
	if len(key) == 1 {
		return fmt.Errorf("%q is not known%s", word, spell.Meant(word, keys()...))
	}
	return fmt.Errorf("%q of a role is not known%s", word, spell.Meant(word, roleKeys()...))
}

// unread says what is wrong with a file that can't be read.
func unread(err error) error {
	var bad toml.ParseError
	switch {
	case errors.As(err, &bad) && bad.Message == errTexts.Error():
		return misfit(fmt.Sprintf("line %d", bad.Position.Line), bad.LastKey, bad.Message)
	case errors.As(err, &bad):
		return fmt.Errorf("line %d: %s", bad.Position.Line, bad.Message)
	}
	line, rest, _ := strings.Cut(strings.TrimPrefix(err.Error(), "toml: "), ` (last key "`)
	key, what, ok := strings.Cut(rest, `"): `)
	if !ok {
		return errors.New(line)
	}
	return misfit(line, key, what)
}

// misfit says what a value has to be that is of another kind than its word's. Of words of
// roles, of which there are several, the library knows the line of the last.
func misfit(line, key, what string) error {
	word := key[strings.LastIndexByte(key, '.')+1:]
	is := func(text string) error {
		if strings.HasPrefix(key, "role.") {
			return fmt.Errorf("%q of a role %s", word, text)
		}
		return fmt.Errorf("%s: %q %s", line, word, text)
	}
	switch key {
	case "role":
		return fmt.Errorf("%s: each role begins with [[role]], in two brackets", line)
	case "volumes", "role.volumes", "role.command", "role.entrypoint":
		return is("is a list of texts: " + word + ` = ["…", "…"]`)
	case "env", "labels", "role.env":
		return is("is names and texts: " + word + ` = { NAME = "…" }`)
	case "role.replicas", "role.cpus":
		return is("is a number, without quotes: " + word + " = 2")
	case "role.read-only", "role.init":
		return is("is true or false, without quotes")
	}
	if strings.HasPrefix(what, "incompatible types") {
		return is("is a text, in quotes: " + word + ` = "…"`)
	}
	return is(": " + what)
}

func keys() []string {
	return []string{"name", "image", "network", "nics", "shm-size", "restart", "timeout", "world", "bind-gpus", "env", "labels", "volumes", "role"}
}

func roleKeys() []string {
	return []string{
		"name", "replicas", "gpus", "image", "command", "entrypoint", "env", "volumes", "workdir", "user", "memory",
		"cpus", "cpuset-cpus", "stop-signal", "read-only", "init",
	}
}

// check looks at what belongs together; single values are their readers' business.
func (f File) check() error {
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
			return fmt.Errorf("role %q: a name is of lower-case letters, digits and \"-\", at most %d, beginning with a letter and ending in none of \"-\"", r.Name, maxName)
		case slices.Contains(names, r.Name):
			return fmt.Errorf("role %q is there twice", r.Name)
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

// badVariable is a name that can't be in an environment, or would be another there.
func badVariable(env Texts) (name string, ok bool) {
	for name := range env {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			return name, true
		}
	}
	return "", false
}

// Count is how many ranks the role has.
func (r Role) Count() int {
	if r.Replicas == nil {
		return 1
	}
	return *r.Replicas
}

// validName: the name is a part of a host's, and so of letters that all resolvers take.
func validName(s string) bool {
	return len(s) <= maxName && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == "" &&
		s[0] >= 'a' && s[0] <= 'z' && s[len(s)-1] != '-'
}
