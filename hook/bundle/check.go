package bundle

import (
	"fmt"
	"reflect"
	"strings"
)

// checker finds keys that two JSON parsers could read differently. Go's matches
// keys regardless of case and lets the last of several win, C's doesn't; a
// runtime that reads another value than the one berth has walled would be a hole.
type checker struct {
	fields map[reflect.Type]map[string]reflect.Type
}

// check returns an error that names the first such key in raw, which is to be
// decoded into a value of type t.
func (c checker) check(raw []byte, t reflect.Type, path string) error {
	switch t.Kind() {
	case reflect.Pointer:
		return c.check(raw, t.Elem(), path)
	case reflect.Struct:
		return c.checkStruct(raw, t, path)
	case reflect.Map:
		return checkMap(raw, path)
	case reflect.Slice:
		if !nested(t.Elem()) {
			return nil
		}
		for i, e := range elements(raw) {
			if err := c.check(e, t.Elem(), fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c checker) checkStruct(raw []byte, t reflect.Type, path string) error {
	known := c.known(t)
	seen := make(map[string]bool, len(known))
	for _, m := range members(raw) {
		ft, ok := known[m.key]
		if !ok {
			if name := caseVariant(known, m.key); name != "" {
				return fmt.Errorf("key %q is %q in other letters", join(path, m.key), name)
			}
			continue
		}
		if seen[m.key] {
			return fmt.Errorf("key %q is there twice", join(path, m.key))
		}
		seen[m.key] = true
		if err := c.check(m.value, ft, join(path, m.key)); err != nil {
			return err
		}
	}
	return nil
}

func checkMap(raw []byte, path string) error {
	seen := make(map[string]bool)
	for _, m := range members(raw) {
		if seen[m.key] {
			return fmt.Errorf("key %q is there twice", join(path, m.key))
		}
		seen[m.key] = true
	}
	return nil
}

// known lists the JSON names of a struct's fields.
func (c checker) known(t reflect.Type) map[string]reflect.Type {
	if names, ok := c.fields[t]; ok {
		return names
	}
	names := make(map[string]reflect.Type, t.NumField())
	for f := range t.Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			names[name] = f.Type
		}
	}
	c.fields[t] = names
	return names
}

func caseVariant(known map[string]reflect.Type, key string) string {
	for name := range known {
		if strings.EqualFold(name, key) {
			return name
		}
	}
	return ""
}

func nested(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Struct, reflect.Map, reflect.Slice:
		return true
	}
	return false
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
