package portal

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// InOrder returns rules in the order of Target.Compare.
func InOrder(rules map[Target]Rule) []Rule {
	return slices.SortedFunc(maps.Values(rules), func(a, b Rule) int { return a.Target.Compare(b.Target) })
}

// ByTarget returns rules keyed by target.
func ByTarget(rules []Rule) map[Target]Rule {
	m := make(map[Target]Rule, len(rules))
	for _, r := range rules {
		m[r.Target] = r
	}
	return m
}

// SortedTargets returns the keys of m in the order of Target.Compare.
func SortedTargets[V any](m map[Target]V) []Target {
	return slices.SortedFunc(maps.Keys(m), Target.Compare)
}

// Plain returns t with an IPv4 address of the form ::ffff:a.b.c.d in its four-byte form, so that the two are the same
// target.
func (t Target) Plain() Target {
	t.Addr = t.Addr.Unmap()
	return t
}

// Check returns an error if no portal can install the rule.
func (r Rule) Check() error {
	t := r.Target
	switch {
	case !t.Addr.IsValid():
		return errors.New("the target has no address")
	case t.Addr.Zone() != "":
		return fmt.Errorf("the address %s has a zone; a VIP has none", t.Addr)
	case t.Addr.IsMulticast():
		return fmt.Errorf("the address %s is a multicast address", t.Addr)
	case t.Port == 0:
		return errors.New("the target has port 0")
	case t.Protocol != TCP && t.Protocol != UDP && t.Protocol != SCTP:
		return fmt.Errorf("protocol %s is not supported: must be tcp, udp or sctp", t.Protocol)
	case r.Action > Drop:
		return fmt.Errorf("invalid action %s: must be redirect, reject or drop", r.Action)
	case r.Action == Redirect && r.LocalPort == 0:
		return errors.New("a redirect needs the local port to redirect to")
	}
	return nil
}

// Merge updates the map wanted: it deletes the rules of the targets in gone, and then adds or replaces those in set. It
// returns the targets whose rule has changed, and errors for invalid rules.
func Merge(wanted map[Target]Rule, set []Rule, gone []Target) (changed []Target, bad map[Target]error) {
	bad = map[Target]error{}
	for _, t := range gone {
		t = t.Plain()
		if _, was := wanted[t]; was {
			delete(wanted, t)
			changed = append(changed, t)
		}
	}
	for _, r := range set {
		r.Target = r.Target.Plain()
		if err := r.Check(); err != nil {
			bad[r.Target] = err
			continue
		}
		if old, was := wanted[r.Target]; !was || old != r {
			wanted[r.Target] = r
			changed = append(changed, r.Target)
		}
	}
	return changed, bad
}
