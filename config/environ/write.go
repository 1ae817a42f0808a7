package environ

import (
	"encoding/json"
	"fmt"
	"io"
	"regexp"
)

// Format is an output format for variables.
type Format string

// The formats.
const (
	Shell  Format = "shell"  // export NAME='value', for a POSIX shell
	Dotenv Format = "dotenv" // NAME=value, for docker run --env-file and programs that read .env
	JSON   Format = "json"   // one object
)

// Formats are all formats.
var Formats = []string{string(Shell), string(Dotenv), string(JSON)}

// shellName matches the names that a shell accepts for variables. The variables of a Service whose name begins with a
// digit do not match.
var shellName = regexp.MustCompile(`^[A-Z_][A-Z0-9_]*$`)

// Write writes vars to w. With Shell it skips those that a shell cannot set, and returns their names.
//
// Values are addresses, numbers, protocols and URLs. So a Dotenv line needs no quotes, which programs interpret
// differently.
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
		// A value never contains a single quote. Between single quotes a shell takes every other character literally,
		// such as the brackets of an IPv6 address.
		if _, err := fmt.Fprintf(w, "export %s='%s'\n", v.Name, v.Value); err != nil {
			return left, err
		}
	}
	return left, nil
}
