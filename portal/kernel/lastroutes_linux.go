package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal"
)

// Rules in OUTPUT see what a process of this node sends only after the kernel has found a
// route for it. On a node without a default route it finds none to a VIP, so portals have
// routes of last resort, which are asked after all others, and for what starts on this
// node only: what comes in is led by PREROUTING, before any route is asked.
//
//	32768: from all iif lo lookup 117118
//	table 117118: VIP dev lo
//
// That lo is named does not matter where a rule changes the destination. The kernel
// takes an address of the node's for the source, 127.0.0.1 or ::1 if there is no other.
const (
	lastRule  = 32768 // behind that of the table default
	lastTable = 117118
)

// LastRoutes are those of one family. They are not safe for concurrent use.
type LastRoutes struct {
	family portal.Family
	routes *Routes
	// there are the VIPs that have one, and, for the rule, the unspecified address; nil if
	// that is not known.
	there map[netip.Addr]bool
	at    lastState // when they were made
}

// lastState is what they depend on.
type lastState struct {
	needed bool
	// scope is that of an IPv4 route: the kernel chooses the source among the addresses
	// that are known as far, or else those of lo.
	scope netlink.Scope
}

// NewLastRoutes returns those of a family, of which nothing is known yet. They are made, and
// looked at, by routes.
func NewLastRoutes(family portal.Family, routes *Routes) *LastRoutes {
	return &LastRoutes{family: family, routes: routes}
}

// lastState finds out whether they are needed: without a default route.
func (r *Routes) lastState(family portal.Family) (s lastState) {
	found, err := r.handle.RouteGet(far[family].AsSlice())
	if s.needed = err != nil || len(found) == 0; !s.needed || family.Is6() {
		return s
	}
	s.scope = netlink.SCOPE_HOST
	addrs, _ := r.handle.AddrList(nil, NetlinkFamily(family)) // none: as on lo alone
	if slices.ContainsFunc(addrs, func(a netlink.Addr) bool { return a.LinkIndex != r.lo && a.Scope < unix.RT_SCOPE_LINK }) {
		s.scope = netlink.SCOPE_LINK
	}
	return s
}

// Bring makes them those for the VIPs that wanted tells, if they are needed and otherwise
// none, and returns what it put back: those that have come to be needed, as when the default
// route goes, are no repair. It reads what the kernel has if reread says so.
func (l *LastRoutes) Bring(wanted func() map[netip.Addr]bool, reread bool) (made []string, err error) {
	r := l.routes
	at := r.lastState(l.family)
	if reread || at != l.at {
		l.there = nil
	}
	if l.there == nil {
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
	others := at != l.at // the scopes of those that are there
	l.at = at
	count := 0
	for addr := range want {
		if l.there[addr] && !others {
			continue
		}
		is, err := r.addLast(addr, at.scope)
		if err != nil {
			l.there = nil
			return made, fmt.Errorf("adding a route of last resort for %s: %w", addr, err)
		}
		if l.there[addr] = true; is {
			count++
		}
	}
	if count > 0 && !others {
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
		err = r.leads(want)
	}
	return made, err
}

// leads returns an error if a route to one of the VIPs is not of use: another that refuses, such as one
// of type unreachable, comes first.
func (r *Routes) leads(vips map[netip.Addr]bool) error {
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

// Stale reports whether Bring has to be called, now that the one for gone has been taken
// out, or, if that is not valid, since something else has changed.
func (l *LastRoutes) Stale(gone netip.Addr) bool {
	if gone.IsValid() {
		stale := l.there[gone]
		delete(l.there, gone)
		return stale
	}
	return l.routes.lastState(l.family) != l.at
}

// lastRoutes reads what there is; see LastRoutes.there.
func (r *Routes) lastRoutes(family portal.Family) (map[netip.Addr]bool, error) {
	there := map[netip.Addr]bool{}
	rules, err := r.handle.RuleList(NetlinkFamily(family))
	if errors.Is(err, unix.EOPNOTSUPP) { // there is no policy routing, and so no table for it
		return there, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing routing rules: %w", err)
	}
	if slices.ContainsFunc(rules, func(rule netlink.Rule) bool { return ruleText(&rule) == ruleText(lastRuleOf(family)) }) {
		there[family.Any()] = true
	}
	err = r.handle.RouteListFilteredIter(NetlinkFamily(family), &netlink.Route{Table: lastTable}, netlink.RT_FILTER_TABLE, func(route netlink.Route) bool {
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
	rule.Family, rule.Priority, rule.Protocol = NetlinkFamily(family), lastRule, RouteProtocol
	rule.IifName, rule.Table = "lo", lastTable
	return rule
}

func (r *Routes) lastRoute(addr netip.Addr, scope netlink.Scope) *netlink.Route {
	return &netlink.Route{LinkIndex: r.lo, Dst: Alone(addr), Table: lastTable, Type: unix.RTN_UNICAST, Scope: scope, Protocol: RouteProtocol}
}

// addLast reports whether it was not there.
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
		err = r.handle.RouteDel(r.lastRoute(addr, netlink.SCOPE_NOWHERE)) // whatever it has
	}
	if err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("removing route of last resort for %s: %w", addr, err)
	}
	return nil
}

// Compare says whether those are there that are wanted, as far as Bring knows.
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

// ForgetLastRoutes takes out all that there are, and says what that was.
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

// LastRouteEvents tells when a route of last resort is taken out, with the VIP, or, with the zero
// address, when something has changed by which they may be needed or not. With a link or an
// address the kernel takes out IPv4 routes without a word.
func LastRouteEvents(matters func(gone netip.Addr) bool) (Subscription, error) {
	return subscribe(unix.NETLINK_ROUTE, func(m syscall.NetlinkMessage) bool {
		switch m.Header.Type {
		case unix.RTM_DELLINK, unix.RTM_DELADDR, unix.RTM_NEWADDR:
			return matters(netip.Addr{})
		case unix.RTM_NEWLINK:
			return len(m.Data) >= unix.SizeofIfInfomsg && nl.DeserializeIfInfomsg(m.Data).Flags&unix.IFF_UP == 0 && matters(netip.Addr{})
		case unix.RTM_DELRULE, unix.RTM_DELROUTE, unix.RTM_NEWROUTE:
		default:
			return false
		}
		if len(m.Data) < unix.SizeofRtMsg { // struct fib_rule_hdr is as large
			return false
		}
		message := nl.DeserializeRtMsg(m.Data)
		table, dst := uint32(message.Table), find(m.Data[unix.SizeofRtMsg:], unix.RTA_DST)
		if v := find(m.Data[unix.SizeofRtMsg:], unix.RTA_TABLE); len(v) == 4 { // FRA_TABLE is the same
			table = binary.NativeEndian.Uint32(v)
		}
		addr, _ := netip.AddrFromSlice(dst)
		switch {
		case table == lastTable && m.Header.Type == unix.RTM_DELRULE:
			return matters(anyOf(message.Family))
		case table == lastTable:
			return m.Header.Type == unix.RTM_DELROUTE && matters(addr)
		}
		return m.Header.Type != unix.RTM_DELRULE && message.Dst_len == 0 && matters(netip.Addr{})
	}, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
}

// anyOf returns the unspecified address of a family by its number.
func anyOf(family uint8) netip.Addr {
	if family == unix.AF_INET6 {
		return portal.IPv6.Any()
	}
	return portal.IPv4.Any()
}
