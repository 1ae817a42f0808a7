package nftables

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/redirect"
)

// soleAddresses counts the rules of each address of which other ports are rejected (portal.Rule.Sole).
type soleAddresses struct {
	targets map[portal.Target]bool // whose rules say so
	rules   map[netip.Addr]int
}

// note takes in the rules; if only is not nil, no others than those for these targets differ from before.
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

// String returns the key as people know it.
func (k mapKey) String() string {
	if k.isAddress() {
		return k.target.Addr.String()
	}
	return k.target.String()
}

// contents is what usher's table in one family holds, as far as known.
type contents struct {
	exists bool
	// other says why the table is none that this version makes.
	other    string
	chains   map[string]heldChain
	elements map[mapKey]mapValue
	users    map[string]int // how many elements jump to a chain
}

// heldChain is what a chain holds. Rules that are read from the kernel are not
// understood but recognized: by fingerprints, which are what the kernel says of
// them, with handles that it never gives twice. Those of another process are
// replaced, which does no harm.
type heldChain struct {
	prints []string
	rules  []rule
	// What List tells of a chain: the networks that it lets in, and whether it
	// asks whether a client is of this node.
	from    []netip.Prefix
	outside bool
}

func noContents() *contents {
	return &contents{chains: map[string]heldChain{}, elements: map[mapKey]mapValue{}, users: map[string]int{}}
}

// put takes note of an element.
func (c *contents) put(k mapKey, v mapValue) {
	c.drop(k)
	c.elements[k] = v
	if chain := v.verdict.chain(); chain != "" {
		c.users[chain]++
	}
}

// drop takes note that an element is gone.
func (c *contents) drop(k mapKey) {
	if chain := c.elements[k].verdict.chain(); chain != "" {
		if c.users[chain]--; c.users[chain] <= 0 {
			delete(c.users, chain)
		}
	}
	delete(c.elements, k)
}

// recognize takes the rules that were put in before for those in the kernel
// where these have the same fingerprints.
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

// mapElement is an element as it is put in or taken out.
type mapElement struct {
	key   mapKey
	value mapValue
}

// change is one transaction. A trial is one that makes a table of another
// name and takes it out again.
type change struct {
	trial      bool // leave nothing behind
	remove     bool // the table
	create     bool // the table with its maps and base chains
	chains     map[string][]rule
	makeChains []string // those of chains that are not there
	goneChains []string
	del        []mapKey
	add        []mapElement
	// repairs names what is not as it should be.
	repairs []string
}

func (c *change) empty() bool {
	return !c.remove && !c.create && len(c.chains)+len(c.goneChains)+len(c.del)+len(c.add) == 0
}

// wanted is what the table is to hold. An empty one is for no table at all,
// where there is none yet.
type wanted struct {
	fixed map[string][]rule
	rules map[portal.Target]portal.Rule // what the elements are for
	sole  map[netip.Addr]int            // the addresses of which other ports are rejected
	// targets are the only ones to look at; nil is all.
	targets []portal.Target
}

// diff says how to get from have to want.
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

// chain makes a chain hold rules.
func (c *change) chain(have *contents, name string, rules []rule) {
	old, there := have.chains[name]
	same := slices.Equal(old.rules, rules) && (len(rules) > 0 || len(old.prints) == 0) // rules are known only if they are recognized
	if there && same || c.chains[name] != nil {
		return
	}
	if !there {
		c.makeChains = append(c.makeChains, name)
	}
	c.chains[name] = rules
	c.repairs = append(c.repairs, "chain "+name)
}

// diffElements returns by how many the elements that jump to a chain change.
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

// done notes in have what the change has made of it.
func (c *change) done(have *contents) *contents {
	if c.remove || c.create {
		have = noContents()
		have.exists = c.create
	}
	for name, rules := range c.chains {
		have.chains[name] = heldChain{rules: rules}
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

// parts splits a change whose elements are too many for one transaction. What is
// new comes first.
func (c *change) parts(most int) []*change {
	first := &change{remove: c.remove, create: c.create, chains: c.chains, makeChains: c.makeChains}
	parts := []*change{first}
	replaced := map[mapKey]bool{}
	for _, k := range c.del {
		replaced[k] = true
	}
	last := func(more int) *change {
		part := parts[len(parts)-1]
		if len(part.add)+len(part.del)+more > most {
			part = &change{}
			parts = append(parts, part)
		}
		return part
	}
	for _, e := range c.add {
		part := last(2)
		if replaced[e.key] {
			part.del = append(part.del, e.key)
			delete(replaced, e.key)
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
