package api

import (
	"strings"
	"unicode"
)

// Clean replaces each control or format character of s by U+FFFD: these control a terminal, begin a new line, or change
// the order of letters.
func Clean(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
}
