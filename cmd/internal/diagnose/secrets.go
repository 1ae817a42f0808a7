package diagnose

import (
	"bytes"
	"regexp"
	"strings"
)

// leftOut replaces secrets.
const leftOut = "(left out)"

// forms match secrets by their form: PEM blocks, HTTP credentials, JSON Web Tokens, and the user and password in a URL.
var forms = []struct {
	is   *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`-----BEGIN [A-Z ]*-----[\s\S]*?(-----END [A-Z ]*-----|\z)`), leftOut},
	{regexp.MustCompile(`(?i)\b(bearer|basic)[ \t]+[\w.~+/=-]{6,}`), "${1} " + leftOut},
	{regexp.MustCompile(`\beyJ[\w-]{5,}\.[\w-]+\.?[\w-]*`), leftOut},
	{regexp.MustCompile(`(://)[^/?#\s"]+@`), "${1}" + leftOut + "@"},
}

var (
	// named matches a name that marks its value as secret, with its closing quote and the separator.
	named = regexp.MustCompile(`(?i)[\w.-]*(?:authorization|token|password|passwd|passphrase|secret|api[_-]?key|private[_-]?key|key-data|credential)[\w.-]*(\\*["'])?([ \t]*(?:=>|:=|[:=])[ \t]*|[ \t]+)`)
	// namespace matches the namespace before the name of an object.
	namespace = regexp.MustCompile(`(?:^|[\s"'=,(])[a-z0-9-]{1,63}/$`)
	// opening matches the opening quote of a value; literal matches an unquoted JSON value.
	opening = regexp.MustCompile(`^(\\*)(["'])`)
	literal = regexp.MustCompile(`^(true|false|null|-?[\d.]+|\[\]|\{\})[ \t]*(?:[,}\]]|$)`)
	// listed matches a value before "&" and another key and value; inURL matches any value in the query of a URL.
	listed = regexp.MustCompile(`^([^\s&"]*)&[\w.%-]+=`)
	inURL  = regexp.MustCompile(`^([^\s&"]*)`)
	// next matches a value before another flag.
	next = regexp.MustCompile(`^(.*?)[ \t]+--\w`)
)

// withoutSecrets replaces the secrets in a file of a bundle by leftOut. In doubt it removes too much, such as the rest
// of a line.
func withoutSecrets(text []byte) []byte {
	for _, f := range forms {
		text = f.is.ReplaceAll(text, []byte(f.with))
	}
	var out []byte
	at, lineEnd, quoted := 0, -1, false
	for {
		m := named.FindSubmatchIndex(text[at:])
		if m == nil {
			return append(out, text[at:]...)
		}
		begin, value, closed := at+m[0], at+m[1], m[2] >= 0
		separator := string(bytes.TrimSpace(text[at+m[4] : value]))
		quoted = inString(text[at:value], quoted)
		out = append(out, text[at:value]...)
		at = value
		flag := bytes.HasPrefix(text[begin:], []byte("--"))
		if separator == "" && !flag || separator == ":" && namespace.Match(text[max(0, begin-65):begin]) {
			continue
		}
		if lineEnd < value {
			lineEnd = value + lineLength(text[value:])
		}
		var shorter []*regexp.Regexp // patterns that may end an unquoted value before the line ends
		switch {
		case flag:
			shorter = append(shorter, next)
		case separator == "=" && begin > 0 && strings.IndexByte("?&", text[begin-1]) >= 0:
			shorter = append(shorter, inURL)
		case separator == "=":
			shorter = append(shorter, listed)
		case closed && !quoted:
			shorter = append(shorter, literal)
		}
		at += valueLength(text[value:lineEnd], quoted, shorter)
		if at == lineEnd {
			at += blockLength(text[at:], column(text[:begin]))
		}
		if at > value {
			out = append(out, leftOut...)
		}
	}
}

// valueLength returns the length of the value at the beginning of a line. A quoted value ends at its closing quote, an
// unquoted one at the first match of shorter. Otherwise it ends with the enclosing string if quoted is set, or with the
// line.
func valueLength(line []byte, quoted bool, shorter []*regexp.Regexp) int {
	begin := 0
	if m := opening.FindSubmatch(line); m != nil {
		begin = len(m[0])
		if end := closing(line, begin, len(m[1]), m[2][0]); end >= 0 {
			return end
		}
	} else {
		for _, s := range shorter {
			if m := s.FindSubmatchIndex(line); m != nil {
				return m[3]
			}
		}
	}
	for i := begin; quoted && i < len(line); i++ {
		if line[i] == '"' && backslashes(line[:i])%2 == 0 {
			return i
		}
	}
	return len(line)
}

// closing returns the end of a quoted value. depth is the number of backslashes before its opening quote: nesting in
// strings of JSON adds them. It returns -1 if text that may belong to the value follows, or the quote is not closed.
func closing(line []byte, begin, depth int, quote byte) int {
	for i := begin; i < len(line); i++ {
		if line[i] != quote {
			continue
		}
		n := min(backslashes(line[:i]), i-begin)
		switch after := line[i+1:]; {
		case n < depth:
			return -1 // of the enclosing string
		case quote == '"' && n%(2*(depth+1)) != depth:
		case len(after) == 0, bytes.IndexByte([]byte(" \t\r,;}])&"), after[0]) >= 0, quote == '\'' && (after[0] == '"' || after[0] == '\\'):
			return i + 1
		default:
			return -1
		}
	}
	return -1
}

// inString reports whether the end of text is in a double-quoted string, given whether its beginning is in one.
func inString(text []byte, is bool) bool {
	for i, c := range text {
		switch {
		case c == '\n':
			is = false
		case c == '"' && backslashes(text[:i])%2 == 0:
			is = !is
		}
	}
	return is
}

// backslashes returns the number of trailing backslashes of text.
func backslashes(text []byte) int { return len(text) - len(bytes.TrimRight(text, `\`)) }

func lineLength(text []byte) int {
	if i := bytes.IndexByte(text, '\n'); i >= 0 {
		return i
	}
	return len(text)
}

// column returns the column of the first word of the last line of text.
func column(text []byte) int {
	line := text[bytes.LastIndexByte(text, '\n')+1:]
	return len(line) - len(bytes.TrimLeft(line, " -\t"))
}

// blockLength returns the length of the lines after a line's end that are indented further than column: a YAML value
// continues there. Empty lines between them count.
func blockLength(text []byte, column int) (length int) {
	for at := 0; at < len(text); {
		end := at + 1 + lineLength(text[at+1:])
		line := text[at+1 : end]
		inside := len(line)-len(bytes.TrimLeft(line, " \t")) > column
		if empty := len(bytes.TrimSpace(line)) == 0; !inside && !empty {
			break
		}
		if at = end; inside {
			length = end
		}
	}
	return length
}
