// Package spell finds the known word that is nearest to a mistyped one, and quotes untrusted words.
package spell

import (
	"strconv"
	"strings"
)

// Nearest returns the known word with the fewest edits to the typed one, the first of several. It returns "" if that takes
// more than two edits, or more than half of the typed word's letters. An edit inserts, deletes or replaces a letter, or
// swaps two adjacent letters. Case doesn't count.
func Nearest(typed string, known []string) string {
	best, fewest := "", min(2, len(typed)/2)+1
	for _, k := range known {
		if d := countEdits(strings.ToLower(typed), strings.ToLower(k)); d < fewest {
			best, fewest = k, d
		}
	}
	return best
}

// Suggestion returns the nearest word as the end of a sentence, " (did you mean WORD?)", or "".
func Suggestion(typed string, known ...string) string {
	if near := Nearest(typed, known); near != "" {
		return " (did you mean " + near + "?)"
	}
	return ""
}

// countEdits is the optimal string alignment distance of two words, in bytes.
func countEdits(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			change := rows[i-1][j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}

// Quote quotes untrusted text for an error of one line, shortened to so many bytes.
func Quote(text string, most int) string {
	if len(text) > most {
		text = text[:most] + "…"
	}
	return strconv.Quote(text)
}
