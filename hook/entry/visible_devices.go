package entry

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Visible is the meaning of NVIDIA_VISIBLE_DEVICES in a container without another
// request. Its image may have set the variable: CUDA's images set it to "all".
type Visible string

// Values of Visible. The zero value counts as Ignore.
const (
	// Ignore means that the variable is no request.
	Ignore Visible = "ignore"
	// Count means that "all" asks for one GPU, and a list of N devices for any N GPUs.
	Count Visible = "count"
	// Honour means that the variable asks for the devices that it names, "all" for all GPUs.
	Honour Visible = "honour"
	// Refuse means that the variable is an error, whose text has the ways to ask.
	Refuse Visible = "refuse"
)

// addVisibleDevices adds the request in NVIDIA_VISIBLE_DEVICES as policy says, unless there
// is another request.
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

// countDevices returns how many devices a list names. "all" counts as one.
func countDevices(list string) int {
	words := strings.Split(list, ",")
	for i := range words {
		words[i] = strings.ToLower(strings.TrimSpace(words[i]))
	}
	slices.Sort(words)
	words = slices.Compact(words)
	return max(1, len(slices.DeleteFunc(words, func(w string) bool { return w == "" })))
}

// printable returns an untrusted text in a form that is safe in a one-line message: quoted where
// needed, and short.
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
