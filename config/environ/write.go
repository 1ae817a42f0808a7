package environ

import (
	"encoding/json"
	"fmt"
	"io"
	"regexp"
)

// Format is how variables are written down.
type Format string

// The formats.
const (
	Shell  Format = "shell"  // export NAME='value', for a POSIX shell
	Dotenv Format = "dotenv" // NAME=value, for docker run --env-file and programs that read .env
	JSON   Format = "json"   // one object
)

// Formats are all of them.
var Formats = []string{string(Shell), string(Dotenv), string(JSON)}

// shellName is what a shell takes for the name of a variable. A Service whose
// name begins with a digit has variables that have none.
var shellName = regexp.MustCompile(`^[A-Z_][A-Z0-9_]*$`)

// Write writes vars to w. With Shell it passes over those that a shell cannot set,
// and returns their names.
//
// Values are addresses, numbers and URLs made of both: a Dotenv line needs no
// quotes, about which its readers do not agree.
func Write(w io.Writer, format Format, vars []Variable) (left []string, err error) {
	switch format {
	case JSON:
		object := make(map[string]string, len(vars))
		for _, v := range vars {
			object[v.Name] = v.Value
		}
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return nil, e.Encode(object)
	case Dotenv:
		for _, v := range vars {
			if _, err := fmt.Fprintln(w, v); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}
	for _, v := range vars {
		if !shellName.MatchString(v.Name) {
			left = append(left, v.Name)
			continue
		}
		// A value never holds a quote, and between quotes all else stands for
		// itself, the brackets of an IPv6 address too.
		if _, err := fmt.Fprintf(w, "export %s='%s'\n", v.Name, v.Value); err != nil {
			return left, err
		}
	}
	return left, nil
}
