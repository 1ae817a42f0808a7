package diagnose

import (
	"bytes"
	"regexp"
	"strings"
)

// What is left out of a bundle: in doubt too much, such as the rest of a line.

const leftOut = "(left out)"

// forms are secrets by their form, and the user of a URL.
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
	// named is a name that says of its value that it is secret, with its quote, and what separates the two.
	named = regexp.MustCompile(`(?i)[\w.-]*(?:authorization|token|password|passwd|passphrase|secret|api[_-]?key|private[_-]?key|key-data|credential)[\w.-]*(\\*["'])?([ \t]*(?:=>|:=|[:=])[ \t]*|[ \t]+)`)
	// namespace is what is before the name of an object.
	namespace = regexp.MustCompile(`(?:^|[\s"'=,(])[a-z0-9-]{1,63}/$`)
	// opening is the quote that a value begins with; literal a value of JSON without.
	opening = regexp.MustCompile(`^(\\*)(["'])`)
	literal = regexp.MustCompile(`^(true|false|null|-?[\d.]+|\[\]|\{\})[ \t]*(?:[,}\]]|$)`)
	// listed is a value that another key and value follow, inURL one after another.
	listed = regexp.MustCompile(`^([^\s&"]*)&[\w.%-]+=`)
	inURL  = regexp.MustCompile(`^([^\s&"]*)`)
	// next is another flag.
	next = regexp.MustCompile(`^(.*?)[ \t]+--\w`)
)

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
		var shorter []*regexp.Regexp // what may end a value without quotes before the line does
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

// valueLength returns how long the value is that a line begins with: to its closing quote, if it has some; without to
// what matches shorter; else to the end of the string that it is in, or of the line.
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

// closing returns where a value ends whose opening quote has so many backslashes, which is how often it is
// in a string of JSON; -1 if something follows that may be a part of it, or nothing closes it.
func closing(line []byte, begin, depth int, quote byte) int {
	for i := begin; i < len(line); i++ {
		if line[i] != quote {
			continue
		}
		n := min(backslashes(line[:i]), i-begin)
		switch after := line[i+1:]; {
		case n < depth:
			return -1 // of the string around it
		case quote == '"' && n%(2*(depth+1)) != depth:
		case len(after) == 0, bytes.IndexByte([]byte(" \t\r,;}])&"), after[0]) >= 0, quote == '\'' && (after[0] == '"' || after[0] == '\\'):
			return i + 1
		default:
			return -1
		}
	}
	return -1
}

// inString reports whether what follows a text is in a string in double quotes, if its beginning was or not.
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

// backslashes returns with how many a text ends.
func backslashes(text []byte) int { return len(text) - len(bytes.TrimRight(text, `\`)) }

func lineLength(text []byte) int {
	if i := bytes.IndexByte(text, '\n'); i >= 0 {
		return i
	}
	return len(text)
}

// column returns where the first word is of the line that a text ends with.
func column(text []byte) int {
	line := text[bytes.LastIndexByte(text, '\n')+1:]
	return len(line) - len(bytes.TrimLeft(line, " -\t"))
}

// blockLength returns how long the lines are, from the end of one on, that are further in than column, or empty: a
// value of YAML goes on there.
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
