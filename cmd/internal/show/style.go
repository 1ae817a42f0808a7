package show

import "github.com/usherproxy/usher/proxy/admin/api"

// Style is a color or other style of text: the parameters of an SGR escape sequence.
type Style string

// The styles.
const (
	Plain Style = ""
	Good  Style = "32"   // green
	Care  Style = "33"   // yellow: failed, but continued
	Bad   Style = "31"   // red: failed
	Note  Style = "36"   // cyan: something changed
	Quiet Style = "2"    // dim
	Title Style = "1"    // bold
	Chose Style = "7"    // reversed
	Alarm Style = "1;31" // bold red
)

// Text returns s in this style.
func (style Style) Text(s string) string {
	if style == Plain || s == "" {
		return s
	}
	return "\x1b[" + string(style) + "m" + s + "\x1b[0m"
}

// Clean is api.Clean. Names and errors come from untrusted sources.
func Clean(s string) string { return api.Clean(s) }
