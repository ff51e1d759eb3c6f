package setup

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// want is a value that a file shall have.
type want struct {
	path  []string
	value any
}

// setKeys sets the values that aren't so already, and returns what that did.
func (f format) setKeys(text []byte, wants []want) ([]byte, []Key, error) {
	if blank(text) && f.none != nil {
		text = f.none
	}
	var keys []Key
	for _, w := range wants {
		after, err := f.write(w.value)
		if err != nil {
			return nil, nil, err
		}
		before, ok, err := f.get(text, w.path...)
		if err != nil {
			return nil, nil, err
		}
		if ok && f.equal(before, after) {
			continue
		}
		key := Key{Path: w.path, After: after, Made: f.missing(text, w.path)}
		if ok {
			key.Before = &before
		}
		if text, err = f.set(text, w.value, w.path...); err != nil {
			return nil, nil, err
		}
		keys = append(keys, key)
	}
	return text, keys, f.check(text)
}

// missing is how many of the tables around a path aren't there.
func (f format) missing(text []byte, path []string) (n int) {
	for i := 1; i < len(path); i++ {
		if !f.there(text, path[:i]...) {
			n++
		}
	}
	return n
}

// unsetKeys takes berth's values out again, the last one first. Those that somebody has
// changed since are left, and returned by name.
func (f format) unsetKeys(text []byte, keys []Key) (after []byte, left []string, err error) {
	for _, k := range slices.Backward(keys) {
		now, ok, err := f.get(text, k.Path...)
		switch {
		case err != nil:
			return nil, nil, err
		case !ok:
		case !f.equal(now, k.After):
			left = append(left, strings.Join(k.Path, "."))
			continue
		case k.Before != nil:
			text, err = f.set(text, f.raw(*k.Before), k.Path...)
		default:
			text, err = f.unset(text, k.Path...)
		}
		if err != nil {
			return nil, nil, err
		}
		if text, err = f.prune(text, k); err != nil {
			return nil, nil, err
		}
	}
	return text, left, nil
}

// prune takes away the tables that were made for a key, if nothing is in them.
func (f format) prune(text []byte, k Key) ([]byte, error) {
	var err error
	for n := range k.Made {
		outer := k.Path[:len(k.Path)-1-n]
		if !f.empty(text, outer...) {
			break
		}
		if text, err = f.unset(text, outer...); err != nil {
			return nil, err
		}
	}
	return text, nil
}

// base is a file's content without berth's part. left are the keys that are nobody
// knows whose.
func (e *Edited) base(f File) (text []byte, left []string, err error) {
	switch {
	case e == nil || !f.Exists || bytes.Equal(f.Data, e.Before) && e.Before != nil:
		return content(f), nil, nil
	case e.wrote(f):
		return e.Before, nil, nil
	}
	as := formatOf(e.Format)
	text, left, err = as.unsetKeys(f.Data, e.Keys)
	if err == nil && e.Before == nil && (blank(text) || as.empty(text)) {
		return nil, left, nil // the file was berth's
	}
	return text, left, err
}

// content is a file's data, nil if there is no file.
func content(f File) []byte {
	if f.Exists && f.Data == nil {
		return []byte{}
	}
	return f.Data
}

// in names the file of an error.
func in(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", name, err)
}
