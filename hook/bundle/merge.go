package bundle

import (
	"bytes"
	"slices"
)

// mergeValue applies a change of a decoded value to the text raw. was and now are the value's
// encodings before and after the change. Bytes of raw that the change does not touch stay. path
// decides which member names the elements of a list.
func mergeValue(raw, was, now []byte, path string) []byte {
	switch {
	case bytes.Equal(was, now):
		return raw
	case raw[0] == '{' && was[0] == '{' && now[0] == '{':
		return mergeObject(raw, was, now, path)
	case raw[0] == '[' && was[0] == '[' && now[0] == '[':
		return mergeArray(raw, was, now, path)
	}
	return now
}

func mergeObject(raw, was, now []byte, path string) []byte {
	have, after := splitMembers(raw), splitMembers(now)
	before, next, old := valuesOf(splitMembers(was)), valuesOf(after), valuesOf(have)
	out := append(make([]byte, 0, len(raw)+len(now)), '{')
	for _, m := range have {
		if value, keep := mergeMember(m, before.lookUp(m.key), next.lookUp(m.key), joinPath(path, m.key)); keep {
			out = appendMember(out, raw[m.start:m.at], value)
		}
	}
	for _, m := range after {
		// A field that is always encoded and was not in raw has not changed.
		if old.lookUp(m.key) == nil && !bytes.Equal(before.lookUp(m.key), m.value) {
			out = appendMember(out, now[m.start:m.at], m.value)
		}
	}
	return append(out, '}')
}

// mergeMember returns the new value of a member of raw, and whether the member stays.
// was and now are nil where they do not have it.
func mergeMember(m member, was, now []byte, path string) (value []byte, keep bool) {
	if path == rulesPath && m.value[0] == '[' { // was and now hold a part of the rules
		return mergeRules(m.value, listOrEmpty(was), listOrEmpty(now)), true
	}
	switch {
	case was != nil && now != nil:
		return mergeValue(m.value, was, now, path), true
	case now != nil:
		return now, true // raw is null, or an unusual form of zero
	case was != nil:
		return removeKnown(m.value, was, path)
	}
	return m.value, true
}

// removeKnown removes from a member what berth has decoded. What berth does not know
// stays in an object, and so does the object itself if anything is left in it.
func removeKnown(raw, was []byte, path string) (value []byte, keep bool) {
	if raw[0] != '{' || was[0] != '{' {
		return nil, false
	}
	value = mergeValue(raw, was, []byte("{}"), path)
	return value, len(splitMembers(value)) > 0
}

// mergeArray keeps the text of elements that are still in the list, even at another index. A changed
// element is matched by its name, if elements of this list have one.
func mergeArray(raw, was, now []byte, path string) []byte {
	text, before := splitElements(raw), splitElements(was)
	switch {
	case len(text) != len(before):
		return now
	case len(before) > 0 && bytes.HasPrefix(now, was[:len(was)-1]) && now[len(was)-1] == ',':
		return slices.Concat(raw[:bytes.LastIndexByte(raw, ']')], now[len(was)-1:]) // only appended to
	}
	same, named := indexQueues{}, indexQueues{}
	naming := namingKey(path)
	for i, e := range before {
		same.pushIndex(string(e), i)
	}
	after := splitElements(now)
	from := make([]int, len(after))
	taken := make([]bool, len(before))
	for k, e := range after {
		if from[k] = same.popFree(string(e), taken); from[k] >= 0 {
			taken[from[k]] = true
		}
	}
	for i, e := range before {
		if name := nameOf(e, naming); name != "" && !taken[i] {
			named.pushIndex(name, i)
		}
	}
	out := []byte{'['}
	for k, e := range after {
		i := from[k]
		if i < 0 {
			i = named.popFree(nameOf(e, naming), taken)
		}
		if i >= 0 {
			taken[i] = true
			e = mergeValue(text[i], before[i], e, path)
		}
		if k > 0 {
			out = append(out, ',')
		}
		out = append(out, e...)
	}
	return append(out, ']')
}

// indexQueues holds indices by key, in order.
type indexQueues map[string][]int

func (q indexQueues) pushIndex(key string, i int) { q[key] = append(q[key], i) }

// popFree removes and returns the first index under key that is not taken, -1 if there
// is none.
func (q indexQueues) popFree(key string, taken []bool) int {
	for len(q[key]) > 0 {
		i := q[key][0]
		q[key] = q[key][1:]
		if !taken[i] {
			return i
		}
	}
	return -1
}

// namingKey returns the member that names an element of the list at path, "" for none.
func namingKey(path string) string {
	switch path {
	case "mounts":
		return "destination"
	case "linux.devices":
		return "path"
	case "linux.namespaces", "process.rlimits":
		return "type"
	case "linux.resources.devices", "process.env", rulesPath:
		return ""
	}
	return "path" // hooks
}

func nameOf(element []byte, key string) string {
	if key == "" {
		return ""
	}
	m, _ := findMember(element, key)
	return string(m.value)
}

// values are the values of an object's members by key; of equal keys the last one's. An
// object with few members is searched in order, which is faster than a map.
type values struct {
	few  []member
	many map[string][]byte
}

func valuesOf(all []member) values {
	const few = 32
	if len(all) <= few {
		return values{few: all}
	}
	many := make(map[string][]byte, len(all))
	for _, m := range all {
		many[m.key] = m.value
	}
	return values{many: many}
}

// lookUp returns the value of a key, nil if there is none.
func (v values) lookUp(key string) []byte {
	for i := len(v.few) - 1; i >= 0; i-- {
		if v.few[i].key == key {
			return v.few[i].value
		}
	}
	return v.many[key]
}

func appendMember(out, key, value []byte) []byte {
	if len(out) > 1 {
		out = append(out, ',')
	}
	return append(append(out, key...), value...)
}
