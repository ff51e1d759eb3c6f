package setup

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-gpu/berth/hook/setup/edit"
)

// editor edits single values in a file's text. Package edit has both.
type editor interface {
	Get(text []byte, path ...string) (value edit.Raw, ok bool, err error)
	Set(text []byte, value any, path ...string) (after []byte, made int, err error)
	Delete(text []byte, prune int, path ...string) ([]byte, error)
	Equal(a edit.Raw, b any) bool
	IsEmpty(text []byte) bool
}

// tomlFormat is the format of a TOML file in a [Record]; JSON has none.
const tomlFormat = "toml"

func editorOf(format string) editor {
	if format == tomlFormat {
		return edit.TOML{}
	}
	return edit.JSON{}
}

// setting is a value to set in a file.
type setting struct {
	path  []string
	value any
}

// planSettings plans settings in a file of the admin.
func (p *planner) planSettings(name, format string, settings []setting) error {
	before, target, err := p.host.readTarget(name)
	if err != nil {
		return err
	}
	text, keys, err := applySettings(editorOf(format), before.Data, settings)
	if err != nil {
		return inFile(target, err)
	}
	if len(keys) == 0 {
		return nil
	}
	base, _, err := p.record.file(target).withoutBerth(before)
	if err != nil {
		return inFile(target, err)
	}
	p.addEdit(Change{target, before, before.withData(text)}, format, keys, base)
	return nil
}

// applySettings sets the values that the text does not have yet. keys are these.
func applySettings(e editor, text []byte, settings []setting) (after []byte, keys []Key, err error) {
	for _, s := range settings {
		before, ok, err := e.Get(text, s.path...)
		if err != nil {
			return nil, nil, err
		}
		if ok && e.Equal(before, s.value) {
			continue
		}
		key := Key{Path: s.path}
		if ok {
			key.Before = (*string)(&before)
		}
		if text, key.Made, err = e.Set(text, s.value, s.path...); err != nil {
			return nil, nil, err
		}
		value, _, err := e.Get(text, s.path...)
		if err != nil {
			return nil, nil, err
		}
		key.After = string(value)
		keys = append(keys, key)
	}
	return text, keys, nil
}

// undoKeys restores what was there before the keys were set, the last one first. A key
// that was changed since stays, and is returned by name.
func undoKeys(e editor, text []byte, keys []Key) (after []byte, kept []string, err error) {
	for _, k := range slices.Backward(keys) {
		now, ok, err := e.Get(text, k.Path...)
		switch {
		case err != nil:
			return nil, nil, err
		case ok && !e.Equal(now, edit.Raw(k.After)):
			kept = append(kept, strings.Join(k.Path, "."))
			continue
		case ok && k.Before != nil:
			text, _, err = e.Set(text, edit.Raw(*k.Before), k.Path...)
		default:
			text, err = e.Delete(text, k.Made, k.Path...)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	return text, kept, nil
}

// withoutBerth returns a file's content without berth's part, nil if there was no file
// before berth. kept are keys that were changed since berth set them.
func (e *EditedFile) withoutBerth(f File) (text []byte, kept []string, err error) {
	switch {
	case e == nil || !f.Exists || bytes.Equal(f.Data, e.Before) && e.Before != nil:
		return contentOf(f), nil, nil
	case e.isUnchanged(f):
		return e.Before, nil, nil
	}
	editor := editorOf(e.Format)
	text, kept, err = undoKeys(editor, f.Data, e.Keys)
	if err == nil && e.Before == nil && (edit.IsBlank(text) || editor.IsEmpty(text)) {
		return nil, kept, nil
	}
	return text, kept, err
}

// contentOf returns a file's data: empty, not nil, for an empty file.
func contentOf(f File) []byte {
	if f.Exists && f.Data == nil {
		return []byte{}
	}
	return f.Data
}

// inFile adds a file's name to an error.
func inFile(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", name, err)
}
