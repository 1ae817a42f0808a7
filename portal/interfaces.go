package portal

import (
	"net"
	"slices"
	"strings"
)

// Interfaces selects network interfaces in the notation of iptables: one name or, with a trailing +, all names that
// begin with the part before it. The zero value selects none.
type Interfaces string

// Has reports whether i includes an interface of that name.
func (i Interfaces) Has(name string) bool {
	if begin, many := strings.CutSuffix(string(i), "+"); many {
		return strings.HasPrefix(name, begin)
	}
	return name != "" && name == string(i)
}

// Exist reports whether this node has such an interface.
func (i Interfaces) Exist() bool {
	all, err := net.Interfaces()
	return err == nil && slices.ContainsFunc(all, func(one net.Interface) bool { return i.Has(one.Name) })
}
