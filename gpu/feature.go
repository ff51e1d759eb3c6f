package gpu

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Feature is a class of devices beside the GPUs that a task asks for by a word of
// its request, in canonical text: "gds", "imex=0-3". No container has one without
// asking, and the admin's policy decides who may ask, by [Feature.Name].
type Feature string

// The names of the features.
const (
	FeatureGDS           = "gds"           // GPUDirect Storage: nvidia-fs*
	FeatureGDRCopy       = "gdrcopy"       // gdrdrv
	FeatureNVSwitch      = "nvswitch"      // nvidia-nvswitch*, nvidia-nvswitchctl
	FeatureFabricManager = "fabricmanager" // the fabric manager's socket
	FeatureIMEX          = "imex"          // IMEX channels, by number: imex=0, imex=0-3
)

// FeatureNames lists the known names in the order of the text.
func FeatureNames() []string {
	return []string{FeatureFabricManager, FeatureGDRCopy, FeatureGDS, FeatureIMEX, FeatureNVSwitch}
}

// maxChannel is the highest number of an IMEX channel: the driver makes no more
// than 2048 of them.
const maxChannel = 2047

// ParseFeature reads one feature, with or without the "+" that it has in a request.
// Its error is an [ErrRequest].
func ParseFeature(s string) (Feature, error) {
	word := strings.ToLower(strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(s), "+")))
	f, err := parseFeature(word)
	if err != nil {
		err.text = strings.TrimSpace(s)
		return "", err
	}
	return f, nil
}

// parseFeature reads a word in lower case, without its "+".
func parseFeature(word string) (Feature, *requestError) {
	name, value, valued := strings.Cut(word, "=")
	name, value = strings.TrimSpace(name), strings.TrimSpace(value)
	switch {
	case !slices.Contains(FeatureNames(), name):
		return "", bad("unknown feature %s; known: %s", quote(name), strings.Join(FeatureNames(), ", "))
	case name == FeatureIMEX:
		return parseChannels(value)
	case valued:
		return "", bad("feature %s takes no value", name)
	}
	return Feature(name), nil
}

func parseChannels(value string) (Feature, *requestError) {
	from, to, ranged := strings.Cut(value, "-")
	if !ranged {
		to = from
	}
	first, okFirst := parseChannel(from)
	last, okLast := parseChannel(to)
	if !okFirst || !okLast || first > last {
		return "", bad("feature imex needs the channels, as imex=0 or imex=0-3, of 0 to %d", maxChannel)
	}
	if first == last {
		return Feature(fmt.Sprintf("imex=%d", first)), nil
	}
	return Feature(fmt.Sprintf("imex=%d-%d", first, last)), nil
}

func parseChannel(s string) (int, bool) {
	s = strings.TrimSpace(s)
	n, err := strconv.ParseUint(s, 10, 16)
	return int(n), err == nil && n <= maxChannel
}

// Name is what policy speaks of: the text without the value.
func (f Feature) Name() string {
	name, _, _ := strings.Cut(string(f), "=")
	return name
}

// Wants says whether the node is among those that the feature asks for.
func (f Feature) Wants(e Extra) bool {
	name, value, _ := strings.Cut(string(f), "=")
	switch {
	case name != e.Feature || name == "":
		return false
	case name != FeatureIMEX:
		return true
	}
	from, to, ranged := strings.Cut(value, "-")
	if !ranged {
		to = from
	}
	first, okFirst := parseChannel(from)
	last, okLast := parseChannel(to)
	return okFirst && okLast && first <= e.Minor && e.Minor <= last
}

// joinFeatures puts features in order, each once. Two values of one name contradict
// each other.
func joinFeatures(features []Feature) (string, *requestError) {
	features = slices.Clone(features)
	slices.SortFunc(features, func(a, b Feature) int {
		return cmp.Or(cmp.Compare(a.Name(), b.Name()), cmp.Compare(a, b))
	})
	features = slices.Compact(features)
	var b strings.Builder
	for i, f := range features {
		if i > 0 && features[i-1].Name() == f.Name() {
			return "", bad("feature %s is asked for as %s and as %s", f.Name(), features[i-1], f)
		}
		b.WriteString(",+" + string(f))
	}
	return b.String(), nil
}

// Features returns what the request asks for beside devices, in a fixed order, of a
// gang what any part asks for; nil if nothing.
func (r Request) Features() []Feature {
	var all []Feature
	if r.kind == kindGang {
		for _, p := range r.Parts() {
			all = append(all, p.Features()...)
		}
		slices.Sort(all)
		return slices.Compact(all)
	}
	for word := range strings.SplitSeq(r.features, ",+") {
		if word != "" {
			all = append(all, Feature(word))
		}
	}
	return all
}

// With returns the request with more features, a gang's with them in each part. The
// same one twice is one; the same name with another value is an [ErrRequest].
func (r Request) With(features ...Feature) (Request, error) {
	if r.kind == kindGang {
		return r.each(func(p Request) (Request, error) { return p.With(features...) })
	}
	joined, err := joinFeatures(append(r.Features(), features...))
	if err != nil {
		err.text = r.String()
		return Request{}, err
	}
	r.features = joined
	return r, nil
}
