package kernel

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal"
)

// usher can connect to an endpoint from the client's address, which the node does not have, and must receive the
// answers. A portal's rules mark them, and policy routing delivers marked packets to this node:
//
//	115: from all fwmark 0x1001/0x1001 lookup 117117
//	116: from all fwmark 0x1000/0x1000 iif lo goto 118
//	117: from all fwmark 0x1000/0x1000 lookup 117117
//	118: from all nop
//	table 117117: local default dev lo
//
// usher's own packets have the same mark (portal.Options.Mark) and must reach their destination. So packets that start
// on this node skip the table: the kernel looks up routes for them as if they came in by lo. The lookups of rp_filter
// (if src_valid_mark is set) and of netfilter's fib matches skip it too. An endpoint that is a process of this node
// also answers from here: the mark of its answers has one more bit.
const (
	answerRule  = 115 // and the three after it
	answerTable = 117117

	answerRouteName = "route of table 117117"
)

// answerRules returns the rules of a family, jump targets first.
func answerRules(family portal.Family, mark uint32) []*netlink.Rule {
	rule := func(priority int, mark uint32) *netlink.Rule {
		r := netlink.NewRule()
		r.Family, r.Priority, r.Protocol = netlinkFamily(family), priority, RouteProtocol
		if r.Mark = mark; mark != 0 {
			r.Mask = &mark
		}
		return r
	}
	end, over, lookup, own := rule(answerRule+3, 0), rule(answerRule+1, mark), rule(answerRule+2, mark), rule(answerRule, AnswerMark(mark))
	end.Type = nl.FR_ACT_NOP
	over.IifName, over.Goto = "lo", end.Priority
	lookup.Table, own.Table = answerTable, answerTable
	return []*netlink.Rule{end, over, lookup, own}
}

// answerRoute returns the route in the rules' table.
func (r *Routes) answerRoute(family portal.Family) *netlink.Route {
	route := r.route(family.Any())
	route.Dst = Everywhere(family)
	route.Table = answerTable
	return route
}

// answerPart is a rule or route that RouteAnswers installs.
type answerPart struct {
	what     string
	add, del func() error
}

// answerParts returns the parts, in an order in which no packet is misrouted while they are added.
func (r *Routes) answerParts(family portal.Family, mark uint32) []answerPart {
	route := r.answerRoute(family)
	parts := []answerPart{{answerRouteName,
		func() error { return r.handle.RouteAdd(route) }, func() error { return r.handle.RouteDel(route) }}}
	for _, rule := range answerRules(family, mark) {
		parts = append(parts, answerPart{ruleName(rule),
			func() error { return r.handle.RuleAdd(rule) }, func() error { return r.handle.RuleDel(rule) }})
	}
	return parts
}

// RouteAnswers routes packets with this mark to this node, and returns the parts that it had to install.
func RouteAnswers(family portal.Family, mark uint32) (made []string, err error) {
	r, err := OpenRoutes()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	for _, part := range r.answerParts(family, mark) {
		switch err := part.add(); {
		case err == nil:
			made = append(made, part.what)
		case !errors.Is(err, unix.EEXIST):
			return made, fmt.Errorf("installing %s of %s: %w", part.what, family, err)
		}
	}
	return made, nil
}

// ProbeAnswers tests RouteAnswers by doing and undoing it. It keeps parts that are already installed.
func ProbeAnswers(family portal.Family, mark uint32) (err error) {
	r, err := OpenRoutes()
	if err != nil {
		return err
	}
	defer r.Close()
	for _, part := range r.answerParts(family, mark) {
		switch e := part.add(); {
		case e == nil:
			defer func() { err = errors.Join(err, part.del()) }()
		case !errors.Is(e, unix.EEXIST):
			return fmt.Errorf("testing %s of %s: %w", part.what, family, e)
		}
	}
	return nil
}

// CompareAnswers returns the state of each part that RouteAnswers installs for a mark, and of any extra ones; with mark
// 0 all are extra.
func CompareAnswers(family portal.Family, mark uint32) (parts []portal.Part, err error) {
	r, err := OpenRoutes()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	rules, err := r.handle.RuleList(netlinkFamily(family))
	if err != nil {
		return nil, fmt.Errorf("listing routing rules: %w", err)
	}
	routes, err := r.handle.RouteListFiltered(netlinkFamily(family), &netlink.Route{Table: answerTable}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("listing routes of table %d: %w", answerTable, err)
	}
	there := slices.ContainsFunc(routes, func(route netlink.Route) bool { return route.Type == unix.RTN_LOCAL && route.LinkIndex == r.lo })
	if mark != 0 {
		parts = append(parts, portal.Part{Family: family, Name: answerRouteName, State: portal.StateOf(there, true), Text: "local default dev lo"})
		for _, want := range answerRules(family, mark) {
			i := slices.IndexFunc(rules, func(have netlink.Rule) bool { return ruleText(&have) == ruleText(want) })
			parts = append(parts, portal.Part{Family: family, Name: ruleName(want), State: portal.StateOf(i >= 0, true), Text: ruleText(want)})
			if i >= 0 {
				rules = slices.Delete(rules, i, i+1)
			}
		}
	} else if there {
		parts = append(parts, portal.Part{Family: family, Name: answerRouteName, State: portal.StateExtra, Text: "local default dev lo"})
	}
	for _, have := range rules {
		if isAnswerRule(&have) {
			parts = append(parts, portal.Part{Family: family, Name: ruleName(&have), State: portal.StateExtra, Text: ruleText(&have)})
		}
	}
	slices.SortStableFunc(parts, func(a, b portal.Part) int { return cmp.Compare(a.Name, b.Name) })
	return parts, nil
}

// isAnswerRule reports whether an installed rule is one of RouteAnswers'.
func isAnswerRule(rule *netlink.Rule) bool {
	at := rule.Priority - answerRule
	return at >= 0 && at <= 3 && (rule.Protocol == RouteProtocol || rule.Table == answerTable || rule.Goto == answerRule+3)
}

func ruleName(rule *netlink.Rule) string { return fmt.Sprintf("routing rule %d", rule.Priority) }

// ruleText returns a rule in the notation of ip rule.
func ruleText(rule *netlink.Rule) string {
	text := fmt.Sprintf("%d: from all", rule.Priority)
	if rule.Mark != 0 {
		text += fmt.Sprintf(" fwmark %#x", rule.Mark)
	}
	if rule.Mask != nil && *rule.Mask != 0 {
		text += fmt.Sprintf("/%#x", *rule.Mask)
	}
	if rule.IifName != "" {
		text += " iif " + rule.IifName
	}
	switch {
	case rule.Goto > 0:
		text += fmt.Sprintf(" goto %d", rule.Goto)
	case rule.Table > 0:
		text += fmt.Sprintf(" lookup %d", rule.Table)
	default:
		text += " nop"
	}
	return text
}

// ForgetAnswers removes the parts that RouteAnswers has installed for any mark except but; with but 0 it removes all.
// It returns their descriptions.
func ForgetAnswers(but uint32) (removed []string, err error) {
	r, err := OpenRoutes()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var errs []error
	for _, family := range portal.Families {
		rules, err := r.handle.RuleList(netlinkFamily(family))
		if errors.Is(err, unix.EOPNOTSUPP) { // no policy routing, and so no table for it
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("listing routing rules: %w", err))
			continue
		}
		installed := answerRules(family, 0)
		order := func(r netlink.Rule) int {
			return slices.IndexFunc(installed, func(i *netlink.Rule) bool { return i.Priority == r.Priority })
		}
		// Those installed last go first: 117 without 116 would match usher's own packets.
		slices.SortStableFunc(rules, func(a, b netlink.Rule) int { return cmp.Compare(order(b), order(a)) })
		count := 0
		for _, rule := range rules {
			if !isAnswerRule(&rule) || but != 0 && (rule.Mark == but || rule.Mark == AnswerMark(but) || rule.Mark == 0) {
				continue
			}
			if err := r.handle.RuleDel(&rule); err != nil && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, fmt.Errorf("removing routing rule %d: %w", rule.Priority, err))
				continue
			}
			count++
		}
		if but == 0 {
			switch err := r.handle.RouteDel(r.answerRoute(family)); {
			case err == nil:
				count++
			case !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.EAFNOSUPPORT):
				errs = append(errs, fmt.Errorf("removing route of table %d: %w", answerTable, err))
			}
		}
		if count > 0 {
			removed = append(removed, fmt.Sprintf("routes: %d %s rules and routes for answers to clients' own addresses", count, family))
		}
	}
	return removed, errors.Join(errs...)
}
