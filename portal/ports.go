package portal

import (
	"hash/fnv"
	"strconv"
	"strings"
)

// PortRange is a range of port numbers, both ends included. The zero value stands for any port.
type PortRange struct {
	First, Last uint16
}

// IsZero reports whether r limits nothing.
func (r PortRange) IsZero() bool { return r.First == 0 && r.Last == 0 }

// Contains reports whether port is in r.
func (r PortRange) Contains(port uint16) bool {
	return r.IsZero() || r.First <= port && port <= r.Last
}

// ParsePorts reads "first:last", or one port.
func ParsePorts(s string) (PortRange, bool) {
	first, last, isRange := strings.Cut(s, ":")
	if !isRange {
		last = first
	}
	a, err1 := strconv.ParseUint(first, 10, 16)
	b, err2 := strconv.ParseUint(last, 10, 16)
	return PortRange{First: uint16(a), Last: uint16(b)}, err1 == nil && err2 == nil
}

// PortAllocator proposes local ports that stay the same across restarts. The target determines where in the range the
// search begins, and the search skips only ports that this process has promised to another target. PortAllocator opens
// nothing, so another process may already use a proposed port.
type PortAllocator struct {
	within PortRange
	owner  map[portKey]Target
	port   map[Target]uint16
}

// portKey names a port; each family and protocol has separate ports.
type portKey struct {
	family   Family
	protocol Protocol
	port     uint16
}

// NewPortAllocator returns a PortAllocator for a range, without assigned ports.
func NewPortAllocator(within PortRange) *PortAllocator {
	return &PortAllocator{within: within, owner: map[portKey]Target{}, port: map[Target]uint16{}}
}

// Propose returns t's port; at the first call for t, it promises one. It returns 0 if all ports of the range are
// promised, or there is no range.
func (b *PortAllocator) Propose(t Target) uint16 {
	if port, ok := b.port[t]; ok {
		return port
	}
	size := uint32(b.within.Last) - uint32(b.within.First) + 1
	h := fnv.New32a()
	h.Write([]byte(t.String()))
	start := h.Sum32() % size
	for i := range size {
		port := uint16(uint32(b.within.First) + (start+i)%size)
		key := portKey{FamilyOf(t.Addr), t.Protocol, port}
		if _, taken := b.owner[key]; !taken && port != 0 {
			b.owner[key], b.port[t] = t, port
			return port
		}
	}
	return 0
}

// Promise records that t already has port.
func (b *PortAllocator) Promise(t Target, port uint16) {
	b.owner[portKey{FamilyOf(t.Addr), t.Protocol, port}], b.port[t] = t, port
}

// Forget releases t's promised port.
func (b *PortAllocator) Forget(t Target) {
	if port, ok := b.port[t]; ok {
		delete(b.port, t)
		if key := (portKey{FamilyOf(t.Addr), t.Protocol, port}); b.owner[key] == t {
			delete(b.owner, key)
		}
	}
}

// ByListener splits the targets of a service port into groups of one family and protocol, which one listener can serve.
// Both the groups and their targets are in the order of Target.Compare.
func ByListener(targets []Target) [][]Target {
	groups := map[portKey]map[Target]struct{}{}
	keys := map[Target]struct{}{}
	for _, t := range targets {
		t = t.Plain()
		if !t.Addr.IsValid() {
			continue // Apply refuses its rule; there is nothing to listen for
		}
		key := portKey{family: FamilyOf(t.Addr), protocol: t.Protocol}
		if groups[key] == nil {
			groups[key] = map[Target]struct{}{}
			keys[Target{Addr: key.family.Any(), Protocol: key.protocol}] = struct{}{}
		}
		groups[key][t] = struct{}{}
	}
	var out [][]Target
	for _, k := range SortedTargets(keys) {
		out = append(out, SortedTargets(groups[portKey{family: FamilyOf(k.Addr), protocol: k.Protocol}]))
	}
	return out
}

// FirstTarget returns the target from which a group's port is derived. It prefers the first VIP to the node port, since
// a Service keeps its cluster IP when it becomes a NodePort Service.
func FirstTarget(group []Target) Target {
	for _, t := range group {
		if !t.Addr.IsUnspecified() {
			return t
		}
	}
	return group[0]
}
