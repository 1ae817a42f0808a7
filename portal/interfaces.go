package portal

import (
	"net"
	"slices"
	"strings"
)

// Interfaces are network interfaces by their names, as iptables has it: the one
// that is called so or, with a + at the end, all whose names begin with what is before
// it. The zero value is none.
type Interfaces string

// Has reports whether an interface of that name is among them.
func (i Interfaces) Has(name string) bool {
	if begin, many := strings.CutSuffix(string(i), "+"); many {
		return strings.HasPrefix(name, begin)
	}
	return name != "" && name == string(i)
}

// Exist reports whether this node has one of them.
func (i Interfaces) Exist() bool {
	all, err := net.Interfaces()
	return err == nil && slices.ContainsFunc(all, func(one net.Interface) bool { return i.Has(one.Name) })
}
