package tasks

import (
	"errors"

	"github.com/berth-gpu/berth/internal/spell"
)

// Choose returns the task that a user means by a word, as Store.Find does.
func Choose(all []Task, word string) (Task, error) {
	ids, known := make([]string, 0, len(all)), make([]string, 0, 2*len(all))
	var named *Task
	for i, t := range all {
		if t.ID == word {
			return t, nil
		}
		if t.Name == word && word != "" {
			named = &all[i]
		}
		ids, known = append(ids, t.ID), append(known, t.Name, t.ID)
	}
	if named != nil {
		return *named, nil
	}
	id, err := matchID(ids, word)
	if errors.Is(err, ErrNotFound) {
		return Task{}, newNotFound(word, spell.Nearest(word, known))
	}
	for _, t := range all {
		if t.ID == id && err == nil {
			return t, nil
		}
	}
	return Task{}, err
}
