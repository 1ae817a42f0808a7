package kernel

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal"
)

// Who connects to an endpoint from the client's address must get the answers, though the
// node has not that address. A portal's rules mark them, and policy routing leads what is
// marked to this node:
//
//	115: from all fwmark 0x1001/0x1001 lookup 117117
//	116: from all fwmark 0x1000/0x1000 iif lo goto 118
//	117: from all fwmark 0x1000/0x1000 lookup 117117
//	118: from all nop
//	table 117117: local default dev lo
//
// The mark is that of usher's own packets (portal.Options.Mark), which have to go where
// they are sent: so what starts on this node, for which the kernel looks routes up as if
// it came in by lo, passes over the table. That goes as well for what rp_filter looks up,
// where src_valid_mark is set, and what fib matches of netfilter do. An endpoint that is
// a process of this node answers from here: its answers have one bit more.
const (
	answerRule  = 115 // and the three that follow
	answerTable = 117117

	answerRouteName = "route of table 117117"
)

// answerRules returns the rules of a family, those that are led to last.
func answerRules(family portal.Family, mark uint32) []*netlink.Rule {
	rule := func(priority int, mark uint32) *netlink.Rule {
		r := netlink.NewRule()
		r.Family, r.Priority, r.Protocol = NetlinkFamily(family), priority, RouteProtocol
		if r.Mark = mark; mark != 0 {
			r.Mask = &mark
		}
		return r
	}
	landing, over, lookup, own := rule(answerRule+3, 0), rule(answerRule+1, mark), rule(answerRule+2, mark), rule(answerRule, AnswerMark(mark))
	landing.Type = nl.FR_ACT_NOP
	over.IifName, over.Goto = "lo", landing.Priority
	lookup.Table, own.Table = answerTable, answerTable
	return []*netlink.Rule{landing, over, lookup, own}
}

// answerRoute returns the route in their table.
func (r *Routes) answerRoute(family portal.Family) *netlink.Route {
	route := r.route(family.Any())
	route.Dst = Everywhere(family)
	route.Table = answerTable
	return route
}

// answerPart is something that LeadAnswers puts in.
type answerPart struct {
	what     string
	add, del func() error
}

// answerParts returns them, in an order in which nothing goes astray meanwhile.
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

// LeadAnswers makes what has this mark come to this node, and returns what it had to put
// in.
func LeadAnswers(family portal.Family, mark uint32) (made []string, err error) {
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

// ProbeAnswers makes sure that LeadAnswers works, by doing and undoing it. What is there
// already stays.
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

// CompareAnswers says of each thing that LeadAnswers puts in for a mark whether it is there,
// and tells of what is there besides; with mark 0 nothing is wanted.
func CompareAnswers(family portal.Family, mark uint32) (parts []portal.Part, err error) {
	r, err := OpenRoutes()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	rules, err := r.handle.RuleList(NetlinkFamily(family))
	if err != nil {
		return nil, fmt.Errorf("listing routing rules: %w", err)
	}
	routes, err := r.handle.RouteListFiltered(NetlinkFamily(family), &netlink.Route{Table: answerTable}, netlink.RT_FILTER_TABLE)
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

// isAnswerRule reports whether a rule that is there is one of those.
func isAnswerRule(rule *netlink.Rule) bool {
	at := rule.Priority - answerRule
	return at >= 0 && at <= 3 && (rule.Protocol == RouteProtocol || rule.Table == answerTable || rule.Goto == answerRule+3)
}

func ruleName(rule *netlink.Rule) string { return fmt.Sprintf("routing rule %d", rule.Priority) }

// ruleText returns a rule as ip rule shows it.
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

// ForgetAnswers takes out what LeadAnswers has put in for any mark but one, 0 for all,
// and says what that was.
func ForgetAnswers(but uint32) (removed []string, err error) {
	r, err := OpenRoutes()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var errs []error
	for _, family := range portal.Families {
		rules, err := r.handle.RuleList(NetlinkFamily(family))
		if errors.Is(err, unix.EOPNOTSUPP) { // there is no policy routing, and so no table for it
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("listing routing rules: %w", err))
			continue
		}
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

// AnswerEvents tells when somebody takes out what LeadAnswers has put in.
func AnswerEvents() (Subscription, error) {
	return subscribe(unix.NETLINK_ROUTE, func(m syscall.NetlinkMessage) bool {
		var attribute uint16
		var is func(uint32) bool
		switch m.Header.Type {
		case unix.RTM_DELRULE:
			attribute = nl.FRA_PRIORITY
			is = func(v uint32) bool { return v >= answerRule && v <= answerRule+3 }
		case unix.RTM_DELROUTE:
			attribute = unix.RTA_TABLE
			is = func(v uint32) bool { return v == answerTable }
		default:
			return false
		}
		if len(m.Data) < unix.SizeofRtMsg { // struct fib_rule_hdr is as large
			return false
		}
		v := find(m.Data[unix.SizeofRtMsg:], attribute)
		return len(v) == 4 && is(binary.NativeEndian.Uint32(v))
	}, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
}
