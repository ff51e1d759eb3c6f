package batch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// ParseObjects reads rows with names from JSON: an array of objects, or objects one after the other. The columns have the order that they have in the text.
func ParseObjects(r io.Reader) (rows []Row, err error) {
	d := json.NewDecoder(r)
	d.UseNumber()
	for {
		token, err := d.Token()
		switch {
		case errors.Is(err, io.EOF):
			return rows, nil
		case err != nil:
			return nil, err
		}
		switch token {
		case json.Delim('['), json.Delim(']'): // d checks that they match
		case json.Delim('{'):
			row, err := parseObject(d)
			if err != nil {
				return nil, fmt.Errorf("object %d: %w", len(rows)+1, err)
			}
			if rows = append(rows, row); len(rows) > maxTasks {
				return nil, fmt.Errorf("there are more than %d objects", maxTasks)
			}
		default:
			return nil, fmt.Errorf("entry %d is no object: each task is one, such as {\"lr\": 0.1}", len(rows)+1)
		}
	}
}

func parseObject(d *json.Decoder) (r Row, err error) {
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return r, err
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return r, err
		}
		r.Names, r.Values = append(r.Names, fmt.Sprint(name)), append(r.Values, plainValue(value))
	}
	_, err = d.Token() // the closing brace
	return r, err
}

// plainValue returns a string without quotes, and anything else as its JSON.
func plainValue(value json.RawMessage) string {
	var text string
	if json.Unmarshal(value, &text) == nil {
		return text
	}
	var compact bytes.Buffer
	if json.Compact(&compact, value) != nil {
		return string(value)
	}
	return compact.String()
}
