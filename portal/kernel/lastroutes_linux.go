package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal"
)

// Rules in OUTPUT see a packet of a local process only after the kernel has found a route for it. A node without a
// default route has no route to a VIP. So portals add routes of last resort, which the kernel looks up after all
// others. They are only for packets that start on this node: PREROUTING redirects others before the route lookup.
//
//	32768: from all iif lo lookup 117118
//	table 117118: VIP dev lo
//
// The device lo is irrelevant where a rule changes the destination. The kernel uses an address of the node as the
// source, 127.0.0.1 or ::1 if there is no other.
const (
	lastRule  = 32768 // after that of the table default
	lastTable = 117118
)

// LastRoutes are the routes of last resort of one family. They are not safe for concurrent use.
type LastRoutes struct {
	family portal.Family
	routes *Routes
	// there has the VIPs with a route and, if the rule exists, the unspecified address; nil if unknown.
	there map[netip.Addr]bool
	at    lastState // when the routes were made
}

// lastState is the state that the routes depend on.
type lastState struct {
	needed bool
	// scope is the scope of the IPv4 routes: the kernel chooses a source address that is valid in it, or else one of
	// lo's.
	scope netlink.Scope
}

// NewLastRoutes returns the routes of a family, in an unknown state. It reads and changes them with routes.
func NewLastRoutes(family portal.Family, routes *Routes) *LastRoutes {
	return &LastRoutes{family: family, routes: routes}
}

// lastState determines whether the routes are needed, as without a default route, and their scope.
func (r *Routes) lastState(family portal.Family) (s lastState) {
	found, err := r.handle.RouteGet(far[family].AsSlice())
	if s.needed = err != nil || len(found) == 0; !s.needed || family.Is6() {
		return s
	}
	s.scope = netlink.SCOPE_HOST
	addrs, _ := r.handle.AddrList(nil, netlinkFamily(family)) // on error, as if only lo had addresses
	if slices.ContainsFunc(addrs, func(a netlink.Addr) bool { return a.LinkIndex != r.lo && a.Scope < unix.RT_SCOPE_LINK }) {
		s.scope = netlink.SCOPE_LINK
	}
	return s
}

// Bring installs the routes for the VIPs that wanted returns or, if routes are not needed, removes them. It returns
// those that it restored. Routes that have become needed, as when the default route is removed, do not count as
// restored. Bring reads the kernel's state only the first time and after Stale or Forget.
func (l *LastRoutes) Bring(wanted func() map[netip.Addr]bool) (made []string, err error) {
	r := l.routes
	at := l.at
	if l.there == nil {
		at = r.lastState(l.family)
		if l.there, err = r.lastRoutes(l.family); err != nil {
			return nil, err
		}
	}
	want := map[netip.Addr]bool{}
	if at.needed {
		if want = wanted(); len(want) > 0 {
			want[l.family.Any()] = true
		}
	}
	replaceAll := at != l.at // the installed routes may have another scope
	count := 0
	for addr := range want {
		if l.there[addr] && !replaceAll {
			continue
		}
		is, err := r.addLast(addr, at.scope)
		if err != nil {
			l.there, l.at = nil, lastState{at.needed, netlink.SCOPE_NOWHERE} // so that the next call replaces all
			return made, fmt.Errorf("adding a route of last resort for %s: %w", addr, err)
		}
		if l.there[addr] = true; is {
			count++
		}
	}
	l.at = at
	if count > 0 && !replaceAll {
		made = append(made, fmt.Sprintf("%d routes of last resort", count))
	}
	for addr := range l.there {
		if want[addr] {
			continue
		}
		if err := r.deleteLast(addr); err != nil {
			l.there = nil
			return made, err
		}
		delete(l.there, addr)
	}
	if count > 0 {
		err = r.checkReachable(want)
	}
	return made, err
}

// checkReachable returns an error if a rejecting route, such as one of type unreachable, precedes the routes. It tests
// one VIP.
func (r *Routes) checkReachable(vips map[netip.Addr]bool) error {
	for addr := range vips {
		if addr.IsUnspecified() {
			continue
		}
		if _, err := r.handle.RouteGet(addr.AsSlice()); err != nil {
			return fmt.Errorf("a rejecting route for %s precedes the route of last resort: %w", addr, err)
		}
		break
	}
	return nil
}

// Stale reports whether Bring has to be called. If gone is valid, the route for gone has been removed; otherwise
// something else has changed. In the latter case, the change may have removed routes without an event, so Bring reads
// them again.
func (l *LastRoutes) Stale(gone netip.Addr) bool {
	if gone.IsValid() {
		stale := l.there[gone]
		delete(l.there, gone)
		return stale
	}
	now := l.routes.lastState(l.family)
	stale := now.needed || now != l.at
	if stale {
		l.Forget()
	}
	return stale
}

// Forget makes the next Bring read the kernel's state.
func (l *LastRoutes) Forget() { l.there = nil }

// lastRoutes reads the installed routes; see LastRoutes.there.
func (r *Routes) lastRoutes(family portal.Family) (map[netip.Addr]bool, error) {
	there := map[netip.Addr]bool{}
	rules, err := r.handle.RuleList(netlinkFamily(family))
	if errors.Is(err, unix.EOPNOTSUPP) { // no policy routing, and so no table for it
		return there, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing routing rules: %w", err)
	}
	if slices.ContainsFunc(rules, func(rule netlink.Rule) bool { return ruleText(&rule) == ruleText(lastRuleOf(family)) }) {
		there[family.Any()] = true
	}
	err = r.handle.RouteListFilteredIter(netlinkFamily(family), &netlink.Route{Table: lastTable}, netlink.RT_FILTER_TABLE, func(route netlink.Route) bool {
		if route.Dst != nil {
			there[prefixOf(route.Dst).Addr()] = true
		}
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("listing routes of table %d: %w", lastTable, err)
	}
	return there, nil
}

func lastRuleOf(family portal.Family) *netlink.Rule {
	rule := netlink.NewRule()
	rule.Family, rule.Priority, rule.Protocol = netlinkFamily(family), lastRule, RouteProtocol
	rule.IifName, rule.Table = "lo", lastTable
	return rule
}

func (r *Routes) lastRoute(addr netip.Addr, scope netlink.Scope) *netlink.Route {
	return &netlink.Route{LinkIndex: r.lo, Dst: Alone(addr), Table: lastTable, Type: unix.RTN_UNICAST, Scope: scope, Protocol: RouteProtocol}
}

// addLast adds the route for addr, or the rule for the unspecified address, and reports whether it was missing.
func (r *Routes) addLast(addr netip.Addr, scope netlink.Scope) (is bool, err error) {
	route := r.lastRoute(addr, scope)
	if addr.IsUnspecified() {
		err = r.handle.RuleAdd(lastRuleOf(portal.FamilyOf(addr)))
	} else {
		err = r.handle.RouteAdd(route)
	}
	if !errors.Is(err, unix.EEXIST) {
		return true, err
	}
	if addr.IsUnspecified() {
		return false, nil
	}
	return false, r.handle.RouteReplace(route)
}

func (r *Routes) deleteLast(addr netip.Addr) (err error) {
	if addr.IsUnspecified() {
		err = r.handle.RuleDel(lastRuleOf(portal.FamilyOf(addr)))
	} else {
		err = r.handle.RouteDel(r.lastRoute(addr, netlink.SCOPE_NOWHERE)) // with any scope
	}
	if err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("removing route of last resort for %s: %w", addr, err)
	}
	return nil
}

// Compare returns the state of the rule and the routes. wanted are the VIPs with rules; whether they need routes is as
// of the last Bring.
func (l *LastRoutes) Compare(wanted map[netip.Addr]bool) ([]portal.Part, error) {
	there, err := l.routes.lastRoutes(l.family)
	if err != nil || len(there) == 0 && (!l.at.needed || len(wanted) == 0) {
		return nil, err
	}
	rule := lastRuleOf(l.family)
	parts := []portal.Part{
		{Family: l.family, Name: ruleName(rule), State: portal.StateOf(there[l.family.Any()], true), Text: ruleText(rule)},
		{Family: l.family, Name: fmt.Sprintf("routes of table %d", lastTable), Text: fmt.Sprintf("%d VIPs dev lo", len(wanted))},
	}
	delete(there, l.family.Any())
	parts[1].State = portal.StateOf(len(there) > 0, maps.Equal(there, wanted))
	if !l.at.needed || len(wanted) == 0 {
		parts[0].State, parts[1].State = portal.StateExtra, portal.StateExtra
	}
	return parts, nil
}

// ForgetLastRoutes removes all routes of last resort, and returns their descriptions.
func ForgetLastRoutes() (removed []string, err error) {
	r, err := OpenRoutes()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var errs []error
	for _, family := range portal.Families {
		there, err := r.lastRoutes(family)
		errs = append(errs, err)
		for addr := range there {
			errs = append(errs, r.deleteLast(addr))
		}
		if len(there) > 0 {
			removed = append(removed, fmt.Sprintf("routes: %d %s rules and routes of last resort", len(there), family))
		}
	}
	return removed, errors.Join(errs...)
}

// routeDelay is the time after which the kernel has removed the routes of an address or link that it reports as removed
// or down.
const routeDelay = 10 * time.Millisecond

// RoutingEvents reports removals of the parts that RouteAnswers has installed. It calls matters with the VIP when a
// route of last resort is removed, and with the unspecified address when the rule is. For any other change that can
// make the routes needed or unneeded, it passes the zero Addr. Such changes include removed links and addresses: the
// kernel removes their IPv4 routes after that event, without another.
func RoutingEvents(matters func(gone netip.Addr) bool) (Subscription, error) {
	return subscribe(unix.NETLINK_ROUTE, func(m syscall.NetlinkMessage) bool {
		switch m.Header.Type {
		case unix.RTM_NEWADDR, unix.RTM_DELLINK:
			return matters(netip.Addr{})
		case unix.RTM_DELADDR:
			time.Sleep(routeDelay)
			return matters(netip.Addr{})
		case unix.RTM_NEWLINK:
			if len(m.Data) < unix.SizeofIfInfomsg || nl.DeserializeIfInfomsg(m.Data).Flags&unix.IFF_UP != 0 {
				return false
			}
			time.Sleep(routeDelay)
			return matters(netip.Addr{})
		case unix.RTM_DELRULE, unix.RTM_DELROUTE, unix.RTM_NEWROUTE:
		default:
			return false
		}
		if len(m.Data) < unix.SizeofRtMsg { // struct fib_rule_hdr has the same size
			return false
		}
		message := nl.DeserializeRtMsg(m.Data)
		number := func(attribute uint16, otherwise uint32) uint32 {
			if v := find(m.Data[unix.SizeofRtMsg:], attribute); len(v) == 4 {
				return binary.NativeEndian.Uint32(v)
			}
			return otherwise
		}
		table := number(unix.RTA_TABLE, uint32(message.Table)) // FRA_TABLE has the same value
		priority := number(nl.FRA_PRIORITY, 0)
		addr, _ := netip.AddrFromSlice(find(m.Data[unix.SizeofRtMsg:], unix.RTA_DST))
		switch {
		case m.Header.Type == unix.RTM_DELRULE && answerRule <= priority && priority <= answerRule+3:
			return true
		case table == lastTable && m.Header.Type == unix.RTM_DELRULE:
			return matters(anyOf(message.Family))
		case table == lastTable:
			return m.Header.Type == unix.RTM_DELROUTE && matters(addr)
		}
		if m.Header.Type == unix.RTM_DELRULE || message.Dst_len > 0 {
			return false
		}
		// The kernel reports a removed IPv4 route before it takes effect (fib_table_delete): matters may be too early.
		return matters(netip.Addr{}) || m.Header.Type == unix.RTM_DELROUTE
	}, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
}

// anyOf returns the unspecified address of a family, by the family's number.
func anyOf(family uint8) netip.Addr {
	if family == unix.AF_INET6 {
		return portal.IPv6.Any()
	}
	return portal.IPv4.Any()
}
