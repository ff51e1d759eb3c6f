// Package json is encoding/json for processes that live for milliseconds.
//
// encoding/json prepares tables and functions for every type that it could meet
// before it reads the first byte. In a server that is paid once; a container's start
// would pay it each time, half a millisecond for what then takes a tenth of it. Here
// nothing is prepared but a list of each struct's fields, when it is first met.
//
// What is written plainly is read and written here; whatever isn't (floating point
// numbers, interfaces, embedded structs, doubled keys, keys in other letters, values of
// the wrong type, broken JSON) is left to encoding/json, with its results and its
// errors. So both always say the same; fuzz tests hold them together.
package json

import (
	"encoding/json"
	"reflect"
)

// Codec reads and writes JSON. The zero value is ready for use; it remembers the types
// that it has met and isn't safe for concurrent use.
type Codec struct {
	structs []*table
	simple  []reflect.Type // named types that aren't structs, and aren't special
}

// Unmarshal reads data into what v points to, which is made zero first. It says what
// json.Unmarshal says.
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
	if e.value(reflect.ValueOf(v)) {
		return e.b, nil
	}
	return json.Marshal(v)
}
