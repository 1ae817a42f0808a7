package strict

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	yaml3 "go.yaml.in/yaml/v3"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// SyntaxError is an error in the YAML or JSON of a file.
type SyntaxError struct {
	Line int // of the file, from 1; 0 if unknown
	Text string
}

func (e SyntaxError) Error() string {
	if e.Line == 0 {
		return e.Text
	}
	return fmt.Sprintf("line %d: %s", e.Line, e.Text)
}

// ToJSON returns the JSON values of a document, usually one: JSON as it is, YAML converted. With errors it may still
// return values, if the document's meaning is clear. Callers use these to identify the objects concerned.
//
// budget is the number of bytes that the documents of a file may still have after their aliases are expanded. ToJSON
// subtracts the expanded size of d, if d has aliases.
func ToJSON(d Document, budget *atomic.Int64) (values [][]byte, errs []SyntaxError) {
	// A file that makes the parser panic must not end the process.
	defer func() {
		if r := recover(); r != nil {
			values, errs = nil, []SyntaxError{{Text: fmt.Sprintf("cannot be parsed: %v", r)}}
		}
	}()

	// JSON is also YAML, but the YAML parser does not allow the tabs of JSON, and is slower.
	text := d.Text
	if separator(text, "---") {
		text = text[len("---"):]
	}
	if text = bytes.TrimSpace(text); len(text) > 0 && text[0] == '{' {
		if values, err := JSONValues(text); err == nil {
			return values, nil
		}
	}
	if size, err := d.aliasedSize(); err != nil {
		return nil, []SyntaxError{d.syntaxError(err)}
	} else if budget.Add(-int64(size)) < 0 {
		return nil, []SyntaxError{{Text: "too large after expanding aliases (*name)"}}
	}
	value, err := yaml.YAMLToJSONStrict(d.Text)
	if err == nil {
		return [][]byte{value}, nil
	}
	if value, lax := yaml.YAMLToJSON(d.Text); lax == nil {
		var root yaml3.Node
		values, _ = [][]byte{value}, yaml3.Unmarshal(d.Text, &root) // if it fails, the strict error is returned
		if errs = d.duplicates(&root, ""); len(errs) == 0 && root.Kind != 0 && bytes.Contains(d.Text, []byte("<<")) {
			return values, nil // a key that a merge (<<) sets, too: YAML and kubectl allow it
		}
		if len(errs) == 0 {
			errs = []SyntaxError{d.yamlError(err)}
		}
		return values, errs
	}
	return nil, []SyntaxError{d.syntaxError(err)}
}

// syntaxError returns the error for a document that is not valid YAML.
func (d Document) syntaxError(err error) SyntaxError {
	if e, is := d.template(); is {
		return e
	}
	return d.yamlError(err)
}

// action matches an action of a Go template in the place of a YAML value or key.
var action = regexp.MustCompile(`(?m)^[^#"'\n]*(\{\{[^\n]{0,60})`)

// template returns the error for a document that must be rendered before it is YAML.
func (d Document) template() (SyntaxError, bool) {
	at := action.FindSubmatchIndex(d.Text)
	if at == nil {
		return SyntaxError{}, false
	}
	return SyntaxError{d.Line - 1 + lines(d.Text[:at[2]]), fmt.Sprintf("%q: template, not a manifest; render it first, for example with \"helm template\"", bytes.TrimSpace(d.Text[at[2]:at[3]]))}, true
}

// JSONValues returns the values of a text of consecutive JSON values, or a syntax error with its line in text.
func JSONValues(text []byte) ([][]byte, *SyntaxError) {
	text = bytes.TrimPrefix(text, byteOrderMark)
	if json.Valid(text) { // usually there is one value
		return [][]byte{bytes.TrimSpace(text)}, nil
	}
	var values [][]byte
	for d := json.NewDecoder(bytes.NewReader(text)); ; {
		var v json.RawMessage
		switch err := d.Decode(&v); {
		case err == io.EOF:
			return values, nil
		case err != nil:
			at := len(text) // the text ended too early
			if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
				at = min(int(syntax.Offset), at)
			}
			return nil, &SyntaxError{Line: lines(text[:at]), Text: err.Error()}
		}
		values = append(values, v)
	}
}

func lines(text []byte) int { return 1 + bytes.Count(text, []byte("\n")) }

var yamlLine = regexp.MustCompile(`^line (\d+): `)

// yamlError extracts the line from an error of the YAML parser.
func (d Document) yamlError(err error) SyntaxError {
	text := strings.TrimPrefix(strings.TrimPrefix(err.Error(), "yaml: "), "unmarshal errors:\n  ")
	m := yamlLine.FindStringSubmatch(text)
	if m == nil {
		return SyntaxError{Text: text}
	}
	text = text[len(m[0]):]
	line, _ := strconv.Atoi(m[1])
	if strings.HasPrefix(text, "did not find expected") {
		line++ // this message counts from 0
	}
	return SyntaxError{Line: d.Line - 1 + min(line, lines(d.Text)), Text: text}
}

// maxDuplicates is the maximum number of duplicate keys that are reported, and maxPath that of bytes of a path.
const maxDuplicates, maxPath = 100, 200

// duplicates returns an error for each duplicate key in a mapping.
func (d Document) duplicates(n *yaml3.Node, path string) (errs []SyntaxError) {
	first := map[string]int{}
	for i, child := range n.Content {
		at := path
		switch {
		case n.Kind == yaml3.SequenceNode:
			at = fmt.Sprintf("%s[%d]", path, i)
		case n.Kind == yaml3.MappingNode && i%2 == 0:
			continue
		case n.Kind == yaml3.MappingNode:
			key, line := n.Content[i-1].Value, d.Line-1+n.Content[i-1].Line
			at = strings.TrimPrefix(path+"."+key, ".")
			if len(at) > maxPath {
				at = strings.ToValidUTF8(at[:maxPath], "") + "…"
			}
			if before, twice := first[key]; twice {
				errs = append(errs, SyntaxError{line, fmt.Sprintf("duplicate field %q; first set in line %d", at, before)})
			}
			first[key] = line
		}
		errs = append(errs, d.duplicates(child, at)...)
		if len(errs) >= maxDuplicates {
			return errs[:maxDuplicates]
		}
	}
	return errs
}

// Aliases reports whether d may contain aliases, which count against the budget of its file.
func (d Document) Aliases() bool {
	return bytes.IndexByte(d.Text, '&') >= 0 && bytes.IndexByte(d.Text, '*') >= 0
}

// aliasedSize returns the approximate size in bytes of d with its aliases expanded; 0 if it has none. It does not
// expand them: nested aliases in a kilobyte can expand to more than the memory.
func (d Document) aliasedSize() (int, error) {
	if !d.Aliases() {
		return 0, nil
	}
	var root yaml3.Node
	if err := yaml3.Unmarshal(d.Text, &root); err != nil {
		return 0, err
	}
	return sizeOf(&root, map[*yaml3.Node]int{}), nil
}

// tooLarge exceeds any budget, but sums of it do not overflow.
const tooLarge = 1 << 40

func sizeOf(n *yaml3.Node, known map[*yaml3.Node]int) int {
	if size, ok := known[n]; ok {
		return size
	}
	known[n] = tooLarge // while it is visited: it may contain itself
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

// Decode decodes a JSON value into an object and returns every error. If there are only unknown or duplicate fields,
// decoded is true, and the object has all other fields.
func Decode(value []byte, into any) (errs []error, decoded bool) {
	errs, err := kjson.UnmarshalStrict(value, into)
	if err != nil {
		return inWords(err, value), false
	}
	return errs, true
}

// DecodePart is like Decode, but accepts fields that into does not have, and duplicate fields.
func DecodePart(value []byte, into any) []error {
	if err := kjson.UnmarshalCaseSensitivePreserveInts(value, into); err != nil {
		return inWords(err, value)
	}
	return nil
}

// inWords rewrites an error from decoding value.
func inWords(err error, value []byte) []error {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		where := "it"
		if wrong.Field != "" {
			where = wrong.Field + key(value, wrong) + ":"
		}
		remedy := ""
		if kind := wrong.Type.Kind(); kind == reflect.String && (wrong.Value == "bool" || strings.HasPrefix(wrong.Value, "number")) {
			remedy = "; put it in quotes"
		}
		return []error{fmt.Errorf("%s must be %s, not %s%s", where, TypeName(wrong.Type), jsonName(wrong.Value), remedy)}
	}
	return []error{err}
}

// kinds are the words of the decoder for JSON values, by their first byte. All others are numbers.
var kinds = map[byte]string{'"': "string", '{': "object", '[': "array", 't': "bool", 'f': "bool", 'n': "null"}

// key returns the first key of the map wrong.Field with a value like wrong.Value, in brackets, or "" if there is none:
// the error of the decoder names only the map.
func key(value []byte, wrong *json.UnmarshalTypeError) string {
	if wrong.Type.Kind() != reflect.String || wrong.Value == "object" {
		return ""
	}
	object := func() (fields map[string]json.RawMessage) {
		_ = json.Unmarshal(value, &fields) // of another value, for example an array, there are none
		return fields
	}
	for _, name := range strings.Split(wrong.Field, ".") {
		value = object()[name]
	}
	fields := object()
	for _, k := range slices.Sorted(maps.Keys(fields)) {
		if strings.HasPrefix(wrong.Value, cmp.Or(kinds[fields[k][0]], "number")) {
			return fmt.Sprintf("[%q]", k)
		}
	}
	return ""
}

// jsonName describes the JSON value that a message of encoding/json names.
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

// TypeName returns the JSON type for a Go type.
func TypeName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return fmt.Sprintf("a whole number of %d bits", t.Bits())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return fmt.Sprintf("a whole number of %d bits that is not negative", t.Bits())
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice, reflect.Array:
		return "an array"
	case reflect.Map, reflect.Struct:
		return "an object"
	}
	return "a string"
}
