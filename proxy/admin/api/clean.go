package api

import (
	"strings"
	"unicode"
)

// Clean returns s with a replacement for each character that controls a terminal, begins a new line or changes the order
// of letters: control characters and format characters.
func Clean(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
}
