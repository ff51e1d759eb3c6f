package gpu

import (
	"slices"
	"strings"
)

// NameWords splits a model's name, or the word of a request, in lower case.
func NameWords(name string) []string {
	return strings.FieldsFunc(strings.ToLower(name), func(c rune) bool {
		return strings.ContainsRune(" -_/()", c)
	})
}

// MatchesModel reports whether word is made of whole words of the model's name in
// their order; words of the name can be left out, and how they are joined
// doesn't count: "a100-40gb" and "rtx4090" match "NVIDIA A100-SXM4-40GB" and
// "NVIDIA GeForce RTX 4090", "a10" matches neither.
func MatchesModel(word, model string) bool {
	word = strings.Join(NameWords(word), "")
	if word == "" {
		return false
	}
	// reached[n]: the first n bytes of word are made of the words seen so far.
	reached := make([]bool, len(word)+1)
	reached[0] = true
	for _, w := range NameWords(model) {
		for n := len(word) - len(w); n >= 0; n-- {
			if reached[n] && strings.HasPrefix(word[n:], w) {
				reached[n+len(w)] = true
			}
		}
	}
	return reached[len(word)]
}

// ModelWord is the word that people use for a model: "h100" for "NVIDIA H100
// 80GB HBM3". It matches the model; "" for a model without a name.
func ModelWord(model string) string {
	words := slices.DeleteFunc(NameWords(model), func(w string) bool {
		return slices.Contains([]string{"nvidia", "amd", "tesla", "quadro", "geforce", "instinct", "graphics"}, w)
	})
	for i, w := range words {
		if !strings.ContainsAny(w, "0123456789") {
			continue
		}
		if strings.Trim(w, "0123456789") == "" && i > 0 {
			w = words[i-1] + w
		}
		return w
	}
	return strings.Join(words, "")
}
