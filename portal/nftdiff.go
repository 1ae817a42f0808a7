package portal

import (
	"maps"
	"net/netip"
	"slices"
)

// nftContents is what usher's table in one family holds, as far as known.
type nftContents struct {
	exists bool
	// other says why the table is none that this version makes.
	other    string
	chains   map[string]nftChain
	elements map[nftKey]nftValue
	users    map[string]int // how many elements jump to a chain
}

// nftChain is what a chain holds. Rules that are read from the kernel are not
// understood but recognized: by fingerprints, which are what the kernel says of
// them, with handles that it never gives twice. Those of another process are
// replaced, which does no harm.
type nftChain struct {
	prints []string
	rules  []nftRule
	// What List tells of a chain: the networks that it lets in, and whether it
	// asks whether a client is of this node.
	from    []netip.Prefix
	outside bool
}

func noNFTContents() *nftContents {
	return &nftContents{chains: map[string]nftChain{}, elements: map[nftKey]nftValue{}, users: map[string]int{}}
}

// put takes note of an element.
func (c *nftContents) put(k nftKey, v nftValue) {
	c.drop(k)
	c.elements[k] = v
	if chain := v.verdict.chain(); chain != "" {
		c.users[chain]++
	}
}

// drop takes note that an element is gone.
func (c *nftContents) drop(k nftKey) {
	if chain := c.elements[k].verdict.chain(); chain != "" {
		if c.users[chain]--; c.users[chain] <= 0 {
			delete(c.users, chain)
		}
	}
	delete(c.elements, k)
}

// recognize takes the rules that were put in before for those in the kernel
// where these have the same fingerprints.
func (c *nftContents) recognize(before *nftContents) {
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

// nftElement is an element as it is put in or taken out.
type nftElement struct {
	key   nftKey
	value nftValue
}

// nftChange is one transaction. A trial is one that makes a table of another
// name and takes it out again.
type nftChange struct {
	trial      bool // leave nothing behind
	remove     bool // the table
	create     bool // the table with its maps and base chains
	chains     map[string][]nftRule
	makeChains []string // those of chains that are not there
	goneChains []string
	del        []nftKey
	add        []nftElement
	// repairs names what is not as it should be.
	repairs []string
}

func (c *nftChange) empty() bool {
	return !c.remove && !c.create && len(c.chains)+len(c.goneChains)+len(c.del)+len(c.add) == 0
}

// nftWanted is what the table is to hold. An empty one is for no table at all,
// where there is none yet.
type nftWanted struct {
	fixed map[string][]nftRule
	rules map[Target]Rule // what the elements are for
	// targets are the only ones to look at; nil is all.
	targets []Target
}

// nftDiff says how to get from have to want.
func nftDiff(have *nftContents, want nftWanted) *nftChange {
	c := &nftChange{chains: map[string][]nftRule{}}
	if want.fixed == nil {
		return c
	}
	if !have.exists || have.other != "" {
		c.remove, c.create = have.exists, true
		c.repairs = append(c.repairs, "table "+nftTable)
		have, want.targets = noNFTContents(), nil
	}
	for _, name := range nftOrder {
		c.chain(have, name, want.fixed[name])
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
func (c *nftChange) chain(have *nftContents, name string, rules []nftRule) {
	old, there := have.chains[name]
	if there && slices.Equal(old.rules, rules) || c.chains[name] != nil {
		return
	}
	if !there {
		c.makeChains = append(c.makeChains, name)
	}
	c.chains[name] = rules
	c.repairs = append(c.repairs, "chain "+name)
}

// diffElements returns by how many the elements that jump to a chain change.
func (c *nftChange) diffElements(have *nftContents, want nftWanted) (users map[string]int) {
	users = map[string]int{}
	set := func(k nftKey, v nftValue, wanted bool) {
		old, there := have.elements[k]
		if there == wanted && old == v {
			return
		}
		if there {
			c.del = append(c.del, k)
			users[old.verdict.chain()]--
		}
		if wanted {
			c.add = append(c.add, nftElement{k, v})
			users[v.verdict.chain()]++
		}
		c.repairs = append(c.repairs, "element "+k.target.String()+" of "+k.inMap())
	}
	one := func(t Target) {
		var elements map[nftKey]nftValue
		if r, is := want.rules[t]; is {
			var chain string
			var rules []nftRule
			if elements, chain, rules = nftElements(r); chain != "" {
				c.chain(have, chain, rules)
			}
		}
		for _, guard := range []bool{false, true} {
			k := nftKey{t, guard}
			v, wanted := elements[k]
			set(k, v, wanted)
		}
	}
	if want.targets != nil {
		for _, t := range want.targets {
			one(t)
		}
		return users
	}
	for _, t := range sortedTargets(want.rules) {
		one(t)
	}
	for k := range have.elements {
		if _, is := want.rules[k.target]; !is {
			set(k, nftValue{}, false)
		}
	}
	return users
}

// done notes in have what the change has made of it.
func (c *nftChange) done(have *nftContents) *nftContents {
	if c.remove || c.create {
		have = noNFTContents()
		have.exists = c.create
	}
	for name, rules := range c.chains {
		have.chains[name] = nftChain{rules: rules}
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
func (c *nftChange) parts(most int) []*nftChange {
	first := &nftChange{remove: c.remove, create: c.create, chains: c.chains, makeChains: c.makeChains}
	parts := []*nftChange{first}
	replaced := map[nftKey]bool{}
	for _, k := range c.del {
		replaced[k] = true
	}
	last := func(more int) *nftChange {
		part := parts[len(parts)-1]
		if len(part.add)+len(part.del)+more > most {
			part = &nftChange{}
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
