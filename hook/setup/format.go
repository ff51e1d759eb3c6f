package setup

import (
	"bytes"

	"github.com/berth-gpu/berth/hook/setup/jsonedit"
	"github.com/berth-gpu/berth/hook/setup/tomledit"
)

// format is how single values of a file are read and changed.
type format struct {
	get   func(text []byte, path ...string) (value string, ok bool, err error)
	set   func(text []byte, value any, path ...string) ([]byte, error)
	unset func(text []byte, path ...string) ([]byte, error)
	empty func(text []byte, path ...string) bool
	equal func(a, b string) bool
	// there says that there is a table at a path.
	there func(text []byte, path ...string) bool
	// write is a value's text, raw a text as a value.
	write func(value any) (string, error)
	raw   func(text string) any
	check func(text []byte) error
	// none is a file with nothing in it.
	none []byte
}

func asJSON() format {
	return format{
		get: func(text []byte, path ...string) (string, bool, error) {
			value, ok, err := jsonedit.Get(text, path...)
			return string(value), ok, err
		},
		set:   jsonedit.Set,
		unset: jsonedit.Delete,
		empty: jsonedit.Empty,
		equal: func(a, b string) bool { return jsonedit.Equal(jsonedit.Raw(a), jsonedit.Raw(b)) },
		there: func(text []byte, path ...string) bool {
			_, ok, err := jsonedit.Get(text, path...)
			return ok && err == nil
		},
		write: func(value any) (string, error) {
			text, err := jsonedit.Text(value)
			return string(text), err
		},
		raw:   func(text string) any { return jsonedit.Raw(text) },
		check: jsonedit.Check,
		none:  []byte("{}\n"),
	}
}

func asTOML() format {
	return format{
		get: func(text []byte, path ...string) (string, bool, error) {
			value, ok, err := tomledit.Get(text, path...)
			return string(value), ok, err
		},
		set: func(text []byte, value any, path ...string) ([]byte, error) {
			return tomledit.Set(text, asRaw(value), path...)
		},
		unset: tomledit.Delete,
		empty: tomledit.Empty,
		equal: func(a, b string) bool { return tomledit.Equal(tomledit.Raw(a), tomledit.Raw(b)) },
		there: tomledit.Headed,
		write: func(value any) (string, error) { return string(asRaw(value)), nil },
		raw:   func(text string) any { return tomledit.Raw(text) },
		check: func(text []byte) error {
			_, err := tomledit.Decode(text)
			return err
		},
	}
}

func asRaw(value any) tomledit.Raw {
	if raw, is := value.(tomledit.Raw); is {
		return raw
	}
	return tomledit.Text(value)
}

// formatOf is the one of this name: "toml", or else JSON.
func formatOf(name string) format {
	if name == tomlFormat {
		return asTOML()
	}
	return asJSON()
}

const tomlFormat = "toml"

// blank says that a file has nothing in it. Engines take that for a file without keys.
func blank(text []byte) bool {
	return len(bytes.TrimSpace(bytes.TrimPrefix(text, []byte("\ufeff")))) == 0
}
