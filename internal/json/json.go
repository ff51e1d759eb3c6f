// Package json is encoding/json for processes that live for milliseconds.
//
// encoding/json prepares tables and functions for every type that a value can contain before it reads the first byte.
// That takes half a millisecond in each process, ten times as long as the work for a container's start. This package
// only prepares a list of each struct's fields, when it first finds the struct.
//
// It handles the plain cases: structs, slices, maps with string keys, pointers, strings,
// booleans, integers and [time.Time]; when it writes, floating point numbers too. Everything
// else (interfaces, embedded structs, types with methods of their own, repeated keys, keys in
// another case, values of the wrong type, malformed JSON) is left to encoding/json, so results
// and errors are always those of encoding/json. Fuzz tests compare the two.
package json

import (
	"encoding/json"
	"reflect"
	"sync"
)

// Codec encodes and decodes JSON. The zero value is ready for use. It is safe for concurrent use. It caches the types
// that it has found.
type Codec struct {
	mu      sync.Mutex
	structs []*structInfo
	plain   []reflect.Type // named types other than structs that have no methods for JSON
}

// Unmarshal decodes data into the variable that v points to, as json.Unmarshal does for a
// variable that is zero: what v holds before is discarded.
func (c *Codec) Unmarshal(data []byte, v any) error {
	to := reflect.ValueOf(v)
	if to.Kind() == reflect.Pointer && !to.IsNil() {
		to = to.Elem()
		to.SetZero()
		if c.decode(data, to) {
			return nil
		}
		to.SetZero()
	}
	return json.Unmarshal(data, v)
}

// Marshal returns the bytes that json.Marshal returns.
func (c *Codec) Marshal(v any) ([]byte, error) {
	e := encoder{codec: c, b: make([]byte, 0, 4096)}
	if e.encode(v) {
		return e.b, nil
	}
	return json.Marshal(v)
}

// Append appends the bytes that json.Marshal returns.
func (c *Codec) Append(b []byte, v any) ([]byte, error) {
	e := encoder{codec: c, b: b}
	if e.encode(v) {
		return e.b, nil
	}
	text, err := json.Marshal(v)
	return append(b, text...), err
}

// AppendIndent appends the bytes that json.MarshalIndent returns for this prefix and an
// indent of two blanks.
func (c *Codec) AppendIndent(b []byte, v any, prefix string) ([]byte, error) {
	e := encoder{codec: c, b: b, lines: true, prefix: prefix}
	if e.encode(v) {
		return e.b, nil
	}
	text, err := json.MarshalIndent(v, prefix, indent)
	return append(b, text...), err
}

// Handles reports whether Marshal handles v without encoding/json. It is for tests of types that are
// encoded where time matters.
func (c *Codec) Handles(v any) bool {
	e := encoder{codec: c}
	return e.encode(v)
}
