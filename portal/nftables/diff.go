package nftables

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/redirect"
)

// soleAddresses counts, by address, the rules with portal.Rule.Sole. Other ports of these addresses are rejected.
type soleAddresses struct {
	targets map[portal.Target]bool // with Sole rules
	rules   map[netip.Addr]int
}

// note records the rules. If only is not nil, only the rules for these targets have changed.
func (s *soleAddresses) note(rules map[portal.Target]portal.Rule, only []portal.Target) {
	set := func(t portal.Target, is bool) {
		switch was := s.targets[t]; {
		case is && !was:
			s.targets[t] = true
			s.rules[t.Addr]++
		case was && !is:
			delete(s.targets, t)
			if s.rules[t.Addr]--; s.rules[t.Addr] == 0 {
				delete(s.rules, t.Addr)
			}
		}
	}
	if only == nil || s.targets == nil {
		s.targets, s.rules = map[portal.Target]bool{}, map[netip.Addr]int{}
		for t, r := range rules {
			set(t, r.Sole)
		}
	}
	for _, t := range only {
		set(t, rules[t].Sole)
	}
}

// String returns the key in readable form.
func (k mapKey) String() string {
	if k.isAddress() {
		return k.target.Addr.String()
	}
	return k.target.String()
}

// contents is the known content of usher's table in one family.
type contents struct {
	exists bool
	// other says how the table differs from any that this version of usher makes; "" if it does not.
	other    string
	chains   map[string]heldChain
	elements map[mapKey]mapValue
	users    map[string]int // by chain, the number of elements that jump to it
}

// heldChain is the content of a chain. Rules read from the kernel are not parsed, but recognized by their fingerprints.
// A fingerprint is the kernel's form of the rule, with its handle, which the kernel never reuses. So rules of another
// usher process differ from all wanted ones and are replaced, which is harmless.
type heldChain struct {
	prints []string
	rules  []rule
	// For List: the networks that the chain lets in, and whether it checks for clients of this node.
	from    []netip.Prefix
	outside bool
}

func noContents() *contents {
	return &contents{chains: map[string]heldChain{}, elements: map[mapKey]mapValue{}, users: map[string]int{}}
}

// put records an element.
func (c *contents) put(k mapKey, v mapValue) {
	c.drop(k)
	c.elements[k] = v
	if chain := v.verdict.chain(); chain != "" {
		c.users[chain]++
	}
}

// drop records that an element was removed.
func (c *contents) drop(k mapKey) {
	if chain := c.elements[k].verdict.chain(); chain != "" {
		if c.users[chain]--; c.users[chain] <= 0 {
			delete(c.users, chain)
		}
	}
	delete(c.elements, k)
}

// recognize copies the known rules in before to the chains of c that have the same fingerprints.
func (c *contents) recognize(before *contents) {
	if before == nil {
		return
	}
	for name, chain := range c.chains {
		if b := before.chains[name]; slices.Equal(chain.prints, b.prints) {
			chain.rules = b.rules
			c.chains[name] = chain
		}
	}
}

// mapElement is an element to add.
type mapElement struct {
	key   mapKey
	value mapValue
}

// change is one transaction. A dry run creates a table of another name and removes it again.
type change struct {
	dryRun     bool // leave nothing behind
	remove     bool // the table
	create     bool // the table with its maps and base chains
	chains     map[string][]rule
	ahead      map[string][]rule // to put before the rules that a chain has
	makeChains []string          // those of chains that do not exist
	goneChains []string
	del        []mapKey
	add        []mapElement
	// repairs names the parts that differ from the wanted ones.
	repairs []string
}

func (c *change) empty() bool {
	return !c.remove && !c.create && len(c.chains)+len(c.goneChains)+len(c.del)+len(c.add) == 0
}

// wanted is the wanted content of the table. If fixed is nil, nothing is to change.
type wanted struct {
	fixed map[string][]rule
	rules map[portal.Target]portal.Rule // the rules for the elements
	sole  map[netip.Addr]int            // the addresses whose other ports are rejected
	// targets are the only ones to compare; nil means all.
	targets []portal.Target
}

// diff returns the change from have to want.
func diff(have *contents, want wanted) *change {
	c := &change{chains: map[string][]rule{}}
	if want.fixed == nil {
		return c
	}
	if !have.exists || have.other != "" {
		c.remove, c.create = have.exists, true
		c.repairs = append(c.repairs, "table "+nameTable)
		have, want.targets = noContents(), nil
	}
	for _, name := range fixedOrder {
		if rules, wanted := want.fixed[name]; wanted {
			c.chain(have, name, rules)
		}
	}
	users := c.diffElements(have, want)
	for _, name := range slices.Sorted(maps.Keys(have.chains)) {
		if _, fixed := want.fixed[name]; !fixed && have.users[name]+users[name] <= 0 {
			c.goneChains = append(c.goneChains, name)
			c.repairs = append(c.repairs, "chain "+name)
		}
	}
	if c.create { // all else follows from the missing table
		c.repairs = c.repairs[:1]
	}
	return c
}

// chain adds to c the rules for a chain.
func (c *change) chain(have *contents, name string, rules []rule) {
	old, there := have.chains[name]
	same := slices.Equal(old.rules, rules) && (len(rules) > 0 || len(old.prints) == 0) // an unrecognized chain has prints but no rules
	if there && same || c.chains[name] != nil {
		return
	}
	if !there {
		c.makeChains = append(c.makeChains, name)
	}
	c.chains[name] = rules
	c.repairs = append(c.repairs, "chain "+name)
}

// diffElements returns the change in the number of elements that jump to each chain.
func (c *change) diffElements(have *contents, want wanted) (users map[string]int) {
	users = map[string]int{}
	set := func(k mapKey, v mapValue, wanted bool) {
		old, there := have.elements[k]
		if there == wanted && old == v {
			return
		}
		if there {
			c.del = append(c.del, k)
			users[old.verdict.chain()]--
		}
		if wanted {
			c.add = append(c.add, mapElement{k, v})
			users[v.verdict.chain()]++
		}
		c.repairs = append(c.repairs, "element "+k.String()+" of "+k.inMap())
	}
	one := func(t portal.Target) {
		var elements map[mapKey]mapValue
		if r, is := want.rules[t]; is {
			var chain string
			var rules []rule
			if elements, chain, rules = elementsOf(r); chain != "" {
				c.chain(have, chain, rules)
			}
		}
		for _, guard := range []bool{false, true} {
			k := mapKey{t, guard}
			v, wanted := elements[k]
			set(k, v, wanted)
		}
	}
	address := func(addr netip.Addr) {
		set(mapKey{target: portal.Target{Addr: addr}}, mapValue{port: redirect.RejectPort}, want.sole[addr] > 0)
	}
	if want.targets != nil {
		addrs := map[netip.Addr]bool{}
		for _, t := range want.targets {
			one(t)
			addrs[t.Addr] = true
		}
		for _, addr := range slices.SortedFunc(maps.Keys(addrs), netip.Addr.Compare) {
			address(addr)
		}
		return users
	}
	for _, t := range portal.SortedTargets(want.rules) {
		one(t)
	}
	for _, addr := range slices.SortedFunc(maps.Keys(want.sole), netip.Addr.Compare) {
		address(addr)
	}
	for k := range have.elements {
		if k.isAddress() && want.sole[k.target.Addr] > 0 {
			continue
		}
		if _, is := want.rules[k.target]; !is {
			set(k, mapValue{}, false)
		}
	}
	return users
}

// done returns the contents after the change. It may modify have.
func (c *change) done(have *contents) *contents {
	if c.remove || c.create {
		have = noContents()
		have.exists = c.create
	}
	for name, rules := range c.chains {
		have.chains[name] = heldChain{rules: rules}
	}
	for name, rules := range c.ahead {
		have.chains[name] = heldChain{rules: slices.Concat(rules, have.chains[name].rules)}
	}
	for _, name := range c.goneChains {
		delete(have.chains, name)
	}
	for _, k := range c.del {
		have.drop(k)
	}
	for _, e := range c.add {
		have.put(e.key, e.value)
	}
	return have
}

// parts splits a change that is too large for one transaction. most limits the rules and elements in a part, fixed
// chains not counted. Additions come first, and chains precede the elements that jump to them. A chain that is longer
// than a part is filled from its end, whose last rule drops. So meanwhile it may drop clients that its other rules will
// let in, but lets in no others.
func (c *change) parts(most int) []*change {
	first := &change{remove: c.remove, create: c.create, chains: map[string][]rule{}, makeChains: c.makeChains}
	parts := []*change{first}
	replaced := map[mapKey]bool{}
	for _, k := range c.del {
		replaced[k] = true
	}
	size := 0 // of the last part
	last := func(more int) *change {
		if size > 0 && size+more > most {
			parts, size = append(parts, &change{chains: map[string][]rule{}, ahead: map[string][]rule{}}), 0
		}
		size += more
		return parts[len(parts)-1]
	}
	for _, name := range slices.Sorted(maps.Keys(c.chains)) {
		rules := c.chains[name]
		if slices.Contains(fixedOrder, name) {
			first.chains[name] = rules
			continue
		}
		begin := max(len(rules)-most, 0)
		last(len(rules) - begin).chains[name] = rules[begin:]
		for end := begin; end > 0; end = begin {
			begin = max(end-most, 0)
			last(most).ahead[name] = rules[begin:end]
		}
	}
	for _, e := range c.add {
		part := last(2)
		if replaced[e.key] {
			part.del = append(part.del, e.key)
			delete(replaced, e.key)
		} else {
			size-- // it needs no deletion
		}
		part.add = append(part.add, e)
	}
	for _, k := range c.del {
		if replaced[k] {
			part := last(1)
			part.del = append(part.del, k)
		}
	}
	parts[len(parts)-1].goneChains = c.goneChains
	return parts
}
