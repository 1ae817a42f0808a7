package strict

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"

	yaml3 "go.yaml.in/yaml/v3"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// SyntaxError is a mistake in the YAML or JSON of a document. Its line counts
// from the beginning of the document, from 1; 0 if it is not known.
type SyntaxError struct {
	Line int
	Text string
}

func (e *SyntaxError) Error() string { return e.Text }

// ToJSON returns the JSON values of a document, usually one: JSON is taken as
// it is, YAML is converted. The errors are all SyntaxErrors. There may be values
// although there are errors, if it is still clear what the document means; they
// are good for telling which objects it speaks of.
//
// budget is how large the document may become when its aliases are written out;
// it is reduced by the size.
func ToJSON(text []byte, budget *atomic.Int64) (values [][]byte, errs []error) {
	// A mistake in a file must not end the process, whatever it finds in the
	// parser.
	defer func() {
		if r := recover(); r != nil {
			values, errs = nil, []error{&SyntaxError{Text: fmt.Sprintf("cannot be parsed: %v", r)}}
		}
	}()

	if values, ok := JSONValues(text); ok {
		return values, nil
	}
	if size, err := expandedSize(text); err != nil {
		return nil, []error{err}
	} else if budget.Add(-int64(size)) < 0 {
		return nil, []error{&SyntaxError{Text: "too large when its aliases (*name) are written out"}}
	}
	value, err := yaml.YAMLToJSONStrict(text)
	if err == nil {
		return [][]byte{value}, nil
	}
	errs = yamlErrors(err, bytes.Count(text, []byte("\n"))+1)
	if value, err := yaml.YAMLToJSON(text); err == nil {
		values = [][]byte{value}
	}
	return values, errs
}

// JSONValues returns the values of a text that consists of JSON objects, one
// after the other, and false if it does not. YAML contains JSON, but its parser
// does not know that tabs are allowed there, and is slower.
func JSONValues(text []byte) ([][]byte, bool) {
	if Separator(text, "---") {
		text = text[len("---"):]
	}
	text = bytes.TrimSpace(text)
	if len(text) == 0 || text[0] != '{' {
		return nil, false
	}
	var out [][]byte
	d := json.NewDecoder(bytes.NewReader(text))
	for {
		var v json.RawMessage
		switch err := d.Decode(&v); {
		case err == io.EOF:
			return out, true
		case err != nil:
			return nil, false
		}
		out = append(out, v)
	}
}

// JSONSyntax returns the error of a file that says by its name that it is JSON,
// or nil if there is none: the YAML parser would point at another place.
func JSONSyntax(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	for {
		var v json.RawMessage
		err := d.Decode(&v)
		var syntax *json.SyntaxError
		switch {
		case err == io.EOF:
			return nil
		case errors.As(err, &syntax):
			at := min(int(syntax.Offset), len(text))
			return &SyntaxError{Line: 1 + bytes.Count(text[:at], []byte("\n")), Text: syntax.Error()}
		case err != nil: // the end came too early
			return &SyntaxError{Line: 1 + bytes.Count(text, []byte("\n")), Text: err.Error()}
		}
	}
}

var yamlLine = regexp.MustCompile(`^(?:yaml: )?line (\d+): (.*)$`)

// yamlErrors takes the line numbers out of an error of the YAML parser, for a
// document of that many lines.
func yamlErrors(err error, lines int) []error {
	text := strings.TrimPrefix(err.Error(), "error converting YAML to JSON: ")
	var out []error
	for s := range strings.SplitSeq(text, "\n") {
		s = strings.TrimSpace(s)
		if s == "yaml: unmarshal errors:" || s == "" {
			continue
		}
		e := &SyntaxError{Text: strings.TrimPrefix(s, "yaml: ")}
		if m := yamlLine.FindStringSubmatch(s); m != nil {
			e.Line, _ = strconv.Atoi(m[1])
			e.Text = m[2]
		}
		if strings.HasPrefix(e.Text, "did not find expected") {
			e.Line++ // this one counts from 0
		}
		e.Line = min(e.Line, lines)
		if key, ok := strings.CutSuffix(e.Text, " already set in map"); ok {
			e.Text = "duplicate field " + strings.TrimPrefix(key, "key ")
		}
		out = append(out, e)
	}
	return out
}

// expandedSize returns about how large text becomes when its aliases are
// written out, without doing so: a few nested ones in a kilobyte can become
// more than fits in memory.
func expandedSize(text []byte) (int, error) {
	if bytes.IndexByte(text, '&') < 0 || bytes.IndexByte(text, '*') < 0 {
		return len(text), nil
	}
	var root yaml3.Node
	if err := yaml3.Unmarshal(text, &root); err != nil {
		return 0, yamlErrors(err, bytes.Count(text, []byte("\n"))+1)[0]
	}
	return sizeOf(&root, map[*yaml3.Node]int{}), nil
}

// tooLarge is more than any budget, and small enough to be added up.
const tooLarge = 1 << 40

func sizeOf(n *yaml3.Node, known map[*yaml3.Node]int) int {
	if size, ok := known[n]; ok {
		return size
	}
	known[n] = tooLarge // as long as it is being looked at: it may contain itself
	size := len(n.Value) + 4
	if n.Alias != nil {
		size += sizeOf(n.Alias, known)
	}
	for _, child := range n.Content {
		size = min(size+sizeOf(child, known), tooLarge)
	}
	known[n] = size
	return size
}

// Decode decodes a JSON value into an object and returns every mistake.
// If none of them is fatal, into holds what could be understood.
func Decode(value []byte, into any) []error {
	strict, err := kjson.UnmarshalStrict(value, into)
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong) && wrong.Field != "":
		return []error{fmt.Errorf("%s: must be %s, not %s", wrong.Field, typeName(wrong.Type), jsonName(wrong.Value))}
	case err != nil:
		return []error{err}
	}
	return strict
}

// jsonName says what a JSON value is, from the words of encoding/json.
func jsonName(s string) string {
	switch {
	case s == "bool":
		return "true or false"
	case s == "array" || s == "object":
		return "an " + s
	case strings.HasPrefix(s, "number "):
		return strings.TrimPrefix(s, "number ")
	}
	return "a " + s
}

// typeName says which JSON value a Go type is written as.
func typeName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a whole number of " + strconv.Itoa(t.Bits()) + " bits"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice, reflect.Array:
		return "an array"
	case reflect.Map, reflect.Struct:
		return "an object"
	}
	return "a string"
}
