package request

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/spell"
)

// maxChannel is the highest number of an IMEX channel: the driver makes no more
// than 2048 of them.
const maxChannel = 2047

// ParseFeature reads one feature, with or without the "+" that it has in a request.
// Its error is an [ErrBad].
func ParseFeature(s string) (gpu.Feature, error) {
	word := strings.ToLower(strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(s), "+")))
	f, err := parseFeature(word)
	if err != nil {
		err.text = strings.TrimSpace(s)
		return "", err
	}
	return f, nil
}

// parseFeature reads a word in lower case, without its "+".
func parseFeature(word string) (gpu.Feature, *parseError) {
	name, value, valued := strings.Cut(word, "=")
	name, value = strings.TrimSpace(name), strings.TrimSpace(value)
	switch {
	case !slices.Contains(gpu.FeatureNames(), name):
		return "", parseErrorf("unknown feature %s; known: %s", spell.Quote(name, maxWord), strings.Join(gpu.FeatureNames(), ", "))
	case name == gpu.FeatureIMEX:
		return parseChannels(value)
	case valued:
		return "", parseErrorf("feature %s takes no value", name)
	}
	return gpu.Feature(name), nil
}

func parseChannels(value string) (gpu.Feature, *parseError) {
	from, to, ranged := strings.Cut(value, "-")
	if !ranged {
		to = from
	}
	first, okFirst := parseChannel(from)
	last, okLast := parseChannel(to)
	if !okFirst || !okLast || first > last {
		return "", parseErrorf("feature imex needs the channels, as imex=0 or imex=0-3, of 0 to %d", maxChannel)
	}
	if first == last {
		return gpu.Feature(fmt.Sprintf("imex=%d", first)), nil
	}
	return gpu.Feature(fmt.Sprintf("imex=%d-%d", first, last)), nil
}

func parseChannel(s string) (int, bool) {
	s = strings.TrimSpace(s)
	n, err := strconv.ParseUint(s, 10, 16)
	return int(n), err == nil && n <= maxChannel
}

// joinFeatures puts features in order, each once. Two values of one name contradict
// each other.
func joinFeatures(features []gpu.Feature) (string, *parseError) {
	features = slices.Clone(features)
	slices.SortFunc(features, func(a, b gpu.Feature) int {
		return cmp.Or(cmp.Compare(a.Name(), b.Name()), cmp.Compare(a, b))
	})
	features = slices.Compact(features)
	var b strings.Builder
	for i, f := range features {
		if i > 0 && features[i-1].Name() == f.Name() {
			return "", parseErrorf("feature %s is asked for as %s and as %s", f.Name(), features[i-1], f)
		}
		b.WriteString(",+" + string(f))
	}
	return b.String(), nil
}

// Features returns what the request asks for beside devices, in a fixed order, of a
// gang what any part asks for; nil if nothing.
func (r Request) Features() []gpu.Feature {
	var all []gpu.Feature
	if r.kind == kindGang {
		for _, p := range r.Parts() {
			all = append(all, p.Features()...)
		}
		slices.Sort(all)
		return slices.Compact(all)
	}
	for word := range strings.SplitSeq(r.features, ",+") {
		if word != "" {
			all = append(all, gpu.Feature(word))
		}
	}
	return all
}

// With returns the request with more features, a gang's with them in each part. The
// same one twice is one; the same name with another value is an [ErrBad].
func (r Request) With(features ...gpu.Feature) (Request, error) {
	if r.kind == kindGang {
		return r.changeParts(func(p Request) (Request, error) { return p.With(features...) })
	}
	joined, err := joinFeatures(append(r.Features(), features...))
	if err != nil {
		err.text = r.String()
		return Request{}, err
	}
	r.features = joined
	return r, nil
}
