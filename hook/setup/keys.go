package setup

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/hook/setup/jsonedit"
)

// want is a value that a JSON file shall have.
type want struct {
	path  []string
	value any
}

// blank says that a JSON file has nothing in it, which engines take for an object.
func blank(text []byte) bool {
	return len(bytes.TrimSpace(bytes.TrimPrefix(text, []byte("\ufeff")))) == 0
}

// setKeys sets the values that aren't so already, and returns what that did.
func setKeys(text []byte, wants []want) ([]byte, []Key, error) {
	if blank(text) {
		text = []byte("{}\n")
	}
	var keys []Key
	for _, w := range wants {
		after, err := jsonedit.Text(w.value)
		if err != nil {
			return nil, nil, err
		}
		before, ok, err := jsonedit.Get(text, w.path...)
		if err != nil {
			return nil, nil, err
		}
		if ok && jsonedit.Equal(before, after) {
			continue
		}
		key := Key{Path: w.path, After: string(after), Made: missing(text, w.path)}
		if ok {
			key.Before = (*string)(&before)
		}
		if text, err = jsonedit.Set(text, w.value, w.path...); err != nil {
			return nil, nil, err
		}
		keys = append(keys, key)
	}
	return text, keys, jsonedit.Check(text)
}

// missing is how many of the objects around a path aren't there.
func missing(text []byte, path []string) (n int) {
	for i := 1; i < len(path); i++ {
		if _, ok, _ := jsonedit.Get(text, path[:i]...); !ok {
			n++
		}
	}
	return n
}

// unsetKeys takes berth's values out again, the last one first. Those that somebody has
// changed since are left, and returned by name.
func unsetKeys(text []byte, keys []Key) (after []byte, left []string, err error) {
	for _, k := range slices.Backward(keys) {
		now, ok, err := jsonedit.Get(text, k.Path...)
		switch {
		case err != nil:
			return nil, nil, err
		case !ok:
		case !jsonedit.Equal(now, jsonedit.Raw(k.After)):
			left = append(left, strings.Join(k.Path, "."))
			continue
		case k.Before != nil:
			text, err = jsonedit.Set(text, jsonedit.Raw(*k.Before), k.Path...)
		default:
			text, err = jsonedit.Delete(text, k.Path...)
		}
		if err != nil {
			return nil, nil, err
		}
		if text, err = prune(text, k); err != nil {
			return nil, nil, err
		}
	}
	return text, left, nil
}

// prune takes away the objects that were made for a key, if nothing is in them.
func prune(text []byte, k Key) ([]byte, error) {
	var err error
	for n := range k.Made {
		outer := k.Path[:len(k.Path)-1-n]
		if !jsonedit.Empty(text, outer...) {
			break
		}
		if text, err = jsonedit.Delete(text, outer...); err != nil {
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
	text, left, err = unsetKeys(f.Data, e.Keys)
	if err == nil && e.Before == nil && jsonedit.Empty(text) {
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
