package manifest

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// A Diagnostic is an error or a note about a manifest. Unknown parts of its place are zero.
type Diagnostic struct {
	File     string
	Document int    // in the file, from 1; empty documents do not count
	Item     string // in a List: "items[3]"
	Line     int    // in the file, from 1; for syntax errors
	Object   string // "Service default/web"
	Service  name   // the Service concerned
	Err      error
}

// errIgnored is for objects of a kind that usher does not read. Folders of manifests contain many: the log and Check
// report them as warnings.
var errIgnored = errors.New("ignored")

// errTwice is for a further definition of an object. The first one is used.
var errTwice = errors.New("already defined")

// Error returns, for example,
//
//	examples/web.yaml, document 2, Service default/web: spec.ports: Required value
func (p Diagnostic) Error() string {
	var where []string
	if p.File != "" {
		where = append(where, p.File)
	}
	if p.Document > 0 {
		where = append(where, fmt.Sprintf("document %d", p.Document))
	}
	if p.Item != "" {
		where = append(where, p.Item)
	}
	if p.Line > 0 {
		where = append(where, fmt.Sprintf("line %d", p.Line))
	}
	if p.Object != "" {
		where = append(where, p.Object)
	}
	if len(where) == 0 {
		return p.Err.Error()
	}
	return strings.Join(where, ", ") + ": " + p.Err.Error()
}

// with returns p with another error in the same place.
func (p Diagnostic) with(err error) Diagnostic {
	p.Err = err
	return p
}

// about returns p as a Diagnostic about a Service.
func (p Diagnostic) about(n name) Diagnostic {
	p.Service = n
	return p
}

// sortDiagnostics sorts by place, and keeps the order within a place.
func sortDiagnostics(ps []Diagnostic) []Diagnostic {
	slices.SortStableFunc(ps, func(a, b Diagnostic) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Document, b.Document), cmp.Compare(len(a.Item), len(b.Item)), cmp.Compare(a.Item, b.Item), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Object, b.Object))
	})
	return ps
}
