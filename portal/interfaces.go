package portal

import (
	"net"
	"slices"
	"strings"
)

// Interfaces are network interfaces in iptables notation: one or, with a trailing +, all whose names begin with the
// part before it. The zero value is none.
type Interfaces string

// Has reports whether i includes an interface of that name.
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
