package translate

import (
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// A Problem is a part of an object that is not served, and why. It names the
// object, the field and the rule.
type Problem struct {
	Kind  string // "Service" or "EndpointSlice"
	Name  types.NamespacedName
	Field *field.Error
}

// Error returns, for example,
//
//	EndpointSlice default/web-1: endpoints[2].addresses[0]: Invalid value: "127.0.0.1": may not be in the loopback range (127.0.0.0/8, ::1/128)
func (p Problem) Error() string {
	return fmt.Sprintf("%s %s: %v", p.Kind, p.Name, p.Field)
}

// Unwrap returns the field's error.
func (p Problem) Unwrap() error { return p.Field }

// problems collects what is wrong with one object, each thing once: some checks
// are made for every port and family.
type problems struct {
	kind string
	name types.NamespacedName
	list []Problem
	seen map[string]bool
}

func (p *problems) add(err *field.Error) {
	text := err.Error()
	if p.seen[text] {
		return
	}
	if p.seen == nil {
		p.seen = map[string]bool{}
	}
	p.seen[text] = true
	p.list = append(p.list, Problem{Kind: p.kind, Name: p.name, Field: err})
}
