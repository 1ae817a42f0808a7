package translate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/usherproxy/usher/config"
)

// A Problem is a part of an object that is not served, and the reason. It names the object, the field and the rule. For
// many parts with the same fault it is the first one.
type Problem struct {
	Kind  string // "Service" or "EndpointSlice"
	Name  types.NamespacedName
	Field *field.Error

	// Count is the number of parts with this fault. If it is more than 1, More states it and names the next few;
	// otherwise More is "".
	Count int
	More  string
}

// Gist returns a text that identifies p among the problems that were already reported. For many parts with the same
// fault, it is the same text whatever their Count.
func (p Problem) Gist() string {
	if p.More == "" {
		return p.Error()
	}
	return fmt.Sprintf("%s %s: %s", p.Kind, withoutIndexes(p.Field.Field), p.Field.Detail)
}

// Error returns, for example,
//
//	EndpointSlice default/web-1: ports[0].port: Invalid value: 70000: must be between 1 and 65535, inclusive
func (p Problem) Error() string {
	return fmt.Sprintf("%s %s: %v%s", p.Kind, p.Name, p.Field, p.More)
}

// An author of EndpointSlices can make a hundred thousand errors.
const (
	// maxNamed is the maximum number of parts with the same fault that are named.
	maxNamed = 5
	// maxKinds is the number of kinds that are distinguished by the text of the broken rule. Further ones are not.
	maxKinds = 20
)

// report collects the problems of a Service and its slices, without duplicates: some checks run for every port and
// family. The number and the length of the problems that list returns are limited.
type report struct {
	kinds map[problemKind]*sameKind
	seen  map[seenProblem]bool
	n     int
}

// problemKind is a kind of fault: the kind of the object, its field regardless of indexes, and the broken rule.
type problemKind struct {
	kind, field string
	why         field.ErrorType
	detail      string
}

type seenProblem struct {
	kind          string
	name          types.NamespacedName
	field, detail string
	value         string // "" if it is no text
}

// sameKind are the problems of one kind.
type sameKind struct {
	named []Problem // the first ones
	at    []int     // the position of each among all problems, in the order of discovery
	count int
}

func (r *report) add(kind string, name types.NamespacedName, err *field.Error) {
	if r.kinds == nil {
		r.kinds, r.seen = map[problemKind]*sameKind{}, map[seenProblem]bool{}
	}
	value, _ := err.BadValue.(string)
	// Many errors may be about one long text.
	place := seenProblem{kind, name, err.Field, err.Detail, config.Cut(value, config.MaxQuote)}
	if r.seen[place] {
		return
	}
	r.seen[place] = true
	r.n++
	key := problemKind{kind, withoutIndexes(err.Field), err.Type, err.Detail}
	if len(r.kinds) >= maxKinds && r.kinds[key] == nil {
		key.detail = ""
	}
	same := r.kinds[key]
	if same == nil {
		same = &sameKind{}
		r.kinds[key] = same
	}
	if same.count++; same.count <= maxNamed {
		same.named, same.at = append(same.named, Problem{Kind: kind, Name: name, Field: brief(err), Count: 1}), append(same.at, r.n)
	}
}

// brief returns err with long parts cut.
func brief(err *field.Error) *field.Error {
	short := *err
	if value := fmt.Sprint(err.BadValue); err.BadValue != nil && len(value) > config.MaxQuote {
		short.BadValue = config.Cut(value, config.MaxQuote)
	}
	short.Field, short.Detail = config.Cut(err.Field, config.MaxMessage), config.Cut(err.Detail, 2*config.MaxMessage)
	return &short
}

// list returns the problems in the order in which they were found. Those of one kind are a single Problem if there are
// more than maxNamed.
func (r *report) list() []Problem {
	at := map[*field.Error]int{}
	var out []Problem
	for _, same := range r.kinds {
		for i, p := range same.named {
			at[p.Field] = same.at[i]
		}
		if same.count > maxNamed {
			out = append(out, same.sum())
		} else {
			out = append(out, same.named...)
		}
	}
	slices.SortFunc(out, func(a, b Problem) int { return cmp.Compare(at[a.Field], at[b.Field]) })
	return out
}

// sum returns the first problem, with a summary of the others.
func (s *sameKind) sum() Problem {
	first := s.named[0]
	first.Count = s.count
	var b strings.Builder
	fmt.Fprintf(&b, "; and %d more of this kind: ", s.count-1)
	for _, p := range s.named[1:] {
		if p.Name != first.Name {
			fmt.Fprintf(&b, "%s %s: ", p.Kind, p.Name)
		}
		fmt.Fprintf(&b, "%s", p.Field.Field)
		if p.Field.BadValue != nil && p.Field.BadValue != "" {
			fmt.Fprintf(&b, " %q", fmt.Sprint(p.Field.BadValue))
		}
		b.WriteString(", ")
	}
	b.WriteString("…")
	first.More = b.String()
	return first
}

// SumUp returns errs, of one object, without duplicates. More than maxNamed of a kind become one error.
func SumUp(errs field.ErrorList) (out []error) {
	var r report
	for _, err := range errs {
		r.add("", types.NamespacedName{}, err)
	}
	for _, p := range r.list() {
		out = append(out, p.Cause())
	}
	return out
}

// Cause returns the error without the object's name.
func (p Problem) Cause() error {
	if p.More == "" {
		return p.Field
	}
	return fmt.Errorf("%w%s", p.Field, p.More)
}

// withoutIndexes returns the path of a field without the numbers in brackets. A regexp would allocate several times as
// much.
func withoutIndexes(path string) string {
	var b strings.Builder
	for i := 0; i < len(path); i++ {
		b.WriteByte(path[i])
		if path[i] != '[' {
			continue
		}
		if n := strings.IndexByte(path[i:], ']'); n > 0 && strings.Trim(path[i+1:i+n], "0123456789") == "" {
			i += n - 1
		}
	}
	return b.String()
}

// problems is the part of a report about one object. With a nil report it discards them.
type problems struct {
	kind   string
	name   types.NamespacedName
	report *report
}

func (p *problems) add(err *field.Error) {
	if p.report != nil {
		p.report.add(p.kind, p.name, err)
	}
}
