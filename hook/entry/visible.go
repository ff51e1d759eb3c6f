package entry

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Visible is what the variable NVIDIA_VISIBLE_DEVICES means in a container whose spec
// asks in no other way. Its image may have set it, and CUDA's images do: to "all".
type Visible string

// What Visible can be. The zero value is Ignore.
const (
	// Ignore: nothing.
	Ignore Visible = "ignore"
	// Count: "all" is one GPU, a list as many as it names, whichever they are.
	Count Visible = "count"
	// Honour: what it says. "all" is all of them.
	Honour Visible = "honour"
	// Refuse: an error that says how to ask.
	Refuse Visible = "refuse"
)

// VisibleWords are all values of [Visible].
func VisibleWords() []string {
	return []string{string(Ignore), string(Count), string(Honour), string(Refuse)}
}

// addVisibleDevices adds what the variable asks for, unless something else does.
func (a *RequestSet) addVisibleDevices(spec *specs.Spec, policy Visible) error {
	value, set := lookUpVariable(spec, VisibleDevices)
	if !set || isNoDevice(value) || len(a.Requests) > 0 || isSandbox(spec.Annotations) {
		return nil
	}
	const source = "environment variable " + VisibleDevices
	switch policy {
	case Count:
		return a.addRequest(source, strconv.Itoa(countDevices(value)))
	case Honour:
		return a.addRequest(source, "device="+value)
	case Refuse:
		return fmt.Errorf("%s=%s asks for no GPU here: --gpus N, --device berth/gpus=N or --annotation %s=N does; -e %s=void starts the container without",
			VisibleDevices, printable(value), Annotation, VisibleDevices)
	}
	return nil
}

// countDevices is how many devices a list names. "all" counts as one.
func countDevices(list string) int {
	words := strings.Split(list, ",")
	for i := range words {
		words[i] = strings.ToLower(strings.TrimSpace(words[i]))
	}
	slices.Sort(words)
	words = slices.Compact(words)
	return max(1, len(slices.DeleteFunc(words, func(w string) bool { return w == "" })))
}

// printable is a stranger's text as it can stand in a line.
func printable(text string) string {
	const most = 40
	if len(text) > most {
		text = text[:most] + "…"
	}
	if quoted := strconv.Quote(text); quoted != `"`+text+`"` || strings.ContainsAny(text, " ") {
		return quoted
	}
	return text
}
