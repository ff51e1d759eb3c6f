package json

import "unicode/utf8"

// maxDepth of nested values is encoding/json's.
const maxDepth = 10000

// Valid says the same as json.Valid, in a third of the time: an OCI spec can hold a seccomp
// profile of a hundred kilobytes. A fuzz test compares the two.
func Valid(data []byte) bool {
	end := scanValue(data, skipSpace(data, 0), 0)
	return end >= 0 && skipSpace(data, end) == len(data)
}

// The scan functions return the index after the value that begins at s[i], or -1 if there is
// no valid one.

func scanValue(s []byte, i, depth int) int {
	if i >= len(s) || depth > maxDepth {
		return -1
	}
	switch c := s[i]; {
	case c == '{':
		return scanObject(s, i, depth+1)
	case c == '[':
		return scanArray(s, i, depth+1)
	case c == '"':
		return scanString(s, i)
	case c == '-' || isDigit(c):
		return scanNumber(s, i)
	}
	for _, word := range []string{"true", "false", "null"} {
		if end := i + len(word); end <= len(s) && string(s[i:end]) == word {
			return end
		}
	}
	return -1
}

func scanObject(s []byte, i, depth int) int {
	if depth > maxDepth {
		return -1
	}
	if i = skipSpace(s, i+1); i < len(s) && s[i] == '}' {
		return i + 1
	}
	for {
		if i >= len(s) || s[i] != '"' {
			return -1
		}
		if i = scanString(s, i); i < 0 {
			return -1
		}
		if i = skipSpace(s, i); i >= len(s) || s[i] != ':' {
			return -1
		}
		if i = scanValue(s, skipSpace(s, i+1), depth); i < 0 {
			return -1
		}
		more, next := scanSeparator(s, i, '}')
		if !more {
			return next
		}
		i = next
	}
}

func scanArray(s []byte, i, depth int) int {
	if depth > maxDepth {
		return -1
	}
	if i = skipSpace(s, i+1); i < len(s) && s[i] == ']' {
		return i + 1
	}
	for {
		if i = scanValue(s, i, depth); i < 0 {
			return -1
		}
		more, next := scanSeparator(s, i, ']')
		if !more {
			return next
		}
		i = next
	}
}

// scanSeparator reads what is after an element: a comma, or the closing bracket. next is the
// index after it.
func scanSeparator(s []byte, i int, closing byte) (more bool, next int) {
	i = skipSpace(s, i)
	switch {
	case i >= len(s):
		return false, -1
	case s[i] == ',':
		return true, skipSpace(s, i+1)
	case s[i] == closing:
		return false, i + 1
	}
	return false, -1
}

func scanString(s []byte, i int) int {
	for i++; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			return i + 1
		case c < ' ':
			return -1
		case c == '\\':
			if i = scanEscape(s, i+1); i < 0 {
				return -1
			}
		}
	}
	return -1
}

// scanEscape returns the index of the escape's last byte.
func scanEscape(s []byte, i int) int {
	if i >= len(s) {
		return -1
	}
	switch s[i] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i
	case 'u':
		if i+4 >= len(s) {
			return -1
		}
		for _, c := range s[i+1 : i+5] {
			if !isDigit(c) && (c|0x20 < 'a' || c|0x20 > 'f' || c >= utf8.RuneSelf) {
				return -1
			}
		}
		return i + 4
	}
	return -1
}

func scanNumber(s []byte, i int) int {
	if s[i] == '-' {
		i++
	}
	switch {
	case i >= len(s) || !isDigit(s[i]):
		return -1
	case s[i] == '0':
		i++
	default:
		i = scanDigits(s, i)
	}
	if i < len(s) && s[i] == '.' {
		if i = scanDigits(s, i+1); i < 0 {
			return -1
		}
	}
	if i < len(s) && s[i]|0x20 == 'e' {
		if i++; i < len(s) && (s[i] == '+' || s[i] == '-') {
			i++
		}
		return scanDigits(s, i)
	}
	return i
}

// scanDigits requires one digit at least.
func scanDigits(s []byte, i int) int {
	start := i
	for i < len(s) && isDigit(s[i]) {
		i++
	}
	if i == start {
		return -1
	}
	return i
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func skipSpace(s []byte, i int) int {
	for i < len(s) && (s[i] == ' ' || s[i] == '\n' || s[i] == '\t' || s[i] == '\r') {
		i++
	}
	return i
}
