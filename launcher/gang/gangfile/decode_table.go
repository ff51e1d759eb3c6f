package gangfile

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"

	"github.com/berth-gpu/berth/internal/spell"
)

// decodeTable decodes a TOML table into a File or a Role. Its errors name the key and a correct form.
func decodeTable(into reflect.Value, said map[string]any) error {
	fields := map[string]reflect.Value{}
	for i := range into.NumField() {
		fields[into.Type().Field(i).Tag.Get("toml")] = into.Field(i)
	}
	for _, key := range slices.Sorted(maps.Keys(said)) {
		field, known := fields[key]
		if !known {
			return fmt.Errorf("%q is not known%s", key, spell.Suggestion(key, slices.Sorted(maps.Keys(fields))...))
		}
		if err := setValue(field.Addr().Interface(), key, said[key]); err != nil {
			return err
		}
	}
	return nil
}

// setValue sets a field to a value of TOML.
func setValue(to any, key string, value any) (err error) {
	switch to := to.(type) {
	case *string:
		if *to, err = parseText(key, value); err == nil {
			err = checkUnit(key, value)
		}
	case **int:
		*to, err = parseWhole(key, value)
	case *float64:
		*to, err = parseNumber(key, value)
	case *bool:
		truth, ok := value.(bool)
		if *to = truth; !ok {
			err = fmt.Errorf("%s is true or false, without quotes", key)
		}
	case *[]string:
		*to, err = parseTexts(key, value)
	case *map[string]string:
		*to, err = parseTable(key, value)
	case *[]Role:
		*to, err = parseRoles(value)
	}
	return err
}

// parseText returns a string, or a whole number as a string.
func parseText(key string, value any) (string, error) {
	switch v := value.(type) {
	case string:
		return v, nil
	case int64:
		return strconv.FormatInt(v, 10), nil
	case float64, bool:
		return "", fmt.Errorf("%s = %v is neither a text nor a whole number: write it in quotes, %s = \"%v\"", key, v, key, v)
	}
	return "", fmt.Errorf("%s is neither a text nor a whole number", key)
}

// checkUnit refuses sizes below 1 MiB without a unit: "8" was most likely meant as 8 GiB.
func checkUnit(key string, value any) error {
	if n, ok := value.(int64); ok && (key == "shm-size" || key == "memory") && n < 1<<20 {
		return fmt.Errorf("%s = %d is of bytes: write it with a unit, such as %s = \"8g\"", key, n, key)
	}
	return nil
}

func parseWhole(key string, value any) (*int, error) {
	n, ok := value.(int64)
	if s, quoted := value.(string); quoted {
		var err error
		n, err = strconv.ParseInt(s, 10, 64)
		ok = err == nil
	}
	if i := int(n); ok {
		return &i, nil
	}
	return nil, fmt.Errorf("%s is a whole number, such as %s = 2", key, key)
}

func parseNumber(key string, value any) (float64, error) {
	n, ok := value.(float64)
	switch v := value.(type) {
	case int64:
		n, ok = float64(v), true
	case string:
		var err error
		n, err = strconv.ParseFloat(v, 64)
		ok = err == nil
	}
	if !ok || math.IsNaN(n) || math.IsInf(n, 0) {
		return 0, fmt.Errorf("%s is a number, such as %s = 1.5", key, key)
	}
	return n, nil
}

func parseTexts(key string, value any) ([]string, error) {
	list, ok := value.([]any)
	if !ok {
		return nil, fmt.Errorf("%s is a list of words, such as %s = [\"a\", \"b\"]", key, key)
	}
	all := make([]string, len(list))
	for i, v := range list {
		var err error
		switch v.(type) {
		case float64, bool:
			return nil, fmt.Errorf("%s: %v is neither a text nor a whole number: write it in quotes, \"%v\"", key, v, v)
		}
		if all[i], err = parseText(strconv.Itoa(i+1), v); err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
	}
	return all, nil
}

func parseTable(key string, value any) (map[string]string, error) {
	said, ok := value.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("%s is a table, such as %s = { NAME = \"value\" }", key, key)
	}
	all := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(said)) {
		var err error
		if all[name], err = parseText(name, said[name]); err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
	}
	return all, nil
}

func parseRoles(value any) ([]Role, error) {
	list, ok := value.([]any)
	all := make([]Role, len(list))
	for i, one := range list {
		var said map[string]any
		if said, ok = one.(map[string]any); !ok {
			break
		}
		if err := decodeTable(reflect.ValueOf(&all[i]).Elem(), said); err != nil {
			if name, ok := said["name"].(string); ok {
				return nil, fmt.Errorf("role %q: %w", name, err)
			}
			return nil, fmt.Errorf("role %d: %w", i+1, err)
		}
	}
	if !ok {
		return nil, errors.New("a role begins with [[role]], in two pairs of brackets")
	}
	return all, nil
}
