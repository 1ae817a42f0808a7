package strict

import "bytes"

// Document is one of the documents of a file.
type Document struct {
	Number int // from 1
	Line   int // the line of the file on which text begins, from 1
	Text   []byte
}

// byteOrderMark precedes the text of some files, mostly on Windows.
var byteOrderMark = []byte("\xef\xbb\xbf")

// Split splits a file into its documents, at separator lines: "---" or "...". A "---" belongs to the document that it
// begins, since content may follow it on its line. YAML directives before it belong to that document, too. Split omits
// documents without content, and does not count them.
func Split(data []byte) []Document {
	data = bytes.TrimPrefix(data, byteOrderMark)
	var out []Document
	begin, beginLine := 0, 1
	cut := func(end, nextLine int) {
		if text := data[begin:end]; !blank(text) {
			out = append(out, Document{Number: len(out) + 1, Line: beginLine, Text: text})
			begin, beginLine = end, nextLine
		} else if !directives(text) {
			begin, beginLine = end, nextLine
		}
	}
	line := 1
	for at := 0; at < len(data); line++ {
		end := len(data)
		if n := bytes.IndexByte(data[at:], '\n'); n >= 0 {
			end = at + n + 1
		}
		switch {
		case separator(data[at:end], "---"):
			cut(at, line)
		case separator(data[at:end], "..."):
			cut(at, line+1)
			begin, beginLine = end, line+1
		}
		at = end
	}
	cut(len(data), line)
	return out
}

// separator reports whether line is mark, alone or followed by white space.
func separator(line []byte, mark string) bool {
	rest, ok := bytes.CutPrefix(line, []byte(mark))
	return ok && (len(rest) == 0 || bytes.IndexByte([]byte(" \t\r\n"), rest[0]) >= 0)
}

// blank reports whether text consists only of white space, comments, directives and separators.
func blank(text []byte) bool {
	for line := range bytes.Lines(text) {
		if separator(line, "---") {
			line = line[3:]
		}
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' && line[0] != '%' {
			return false
		}
	}
	return true
}

// directives reports whether text consists of YAML directives without a document, which belong to the next one.
func directives(text []byte) bool {
	found := false
	for line := range bytes.Lines(text) {
		if separator(line, "---") {
			return false
		}
		found = found || line[0] == '%'
	}
	return found
}
