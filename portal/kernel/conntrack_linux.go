package kernel

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"net/netip"

	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/usherproxy/usher/portal"
)

// ForgetFlows deletes the conntrack entries of UDP flows to the targets in want that contradict it. For each target,
// want has the local port, 0 if it is rejected, or -1 if it no longer has a rule. Flows without a rule then leave the
// node as they would without usher. The kernel consults the nat table only for a flow's first packet. Without the
// deletion, a client that keeps its port would keep sending to a closed listener.
//
// TCP clients use a new port for each connection, but repeat a SYN that gets no answer. So for TCP targets, ForgetFlows
// deletes only flows in state SYN_SENT. Callers pass TCP targets only if they had no rule before, or after a repair,
// since a dump of all flows may take long.
func ForgetFlows(want map[portal.Target]int) error {
	var errs []error
	for _, family := range portal.Families {
		filter := staleFlows{want: map[portal.Target]int{}, family: family}
		for t, port := range want {
			if t.Protocol != portal.SCTP && portal.FamilyOf(t.Addr) == family {
				filter.want[t] = port
				filter.nodePorts = filter.nodePorts || t.Addr.IsUnspecified()
			}
		}
		if len(filter.want) == 0 {
			continue
		}
		if filter.nodePorts {
			filter.local = localPrefixes(family)
		}
		header := &nl.Nfgenmsg{NfgenFamily: uint8(netlinkFamily(family)), Version: unix.NFNETLINK_V0}
		dump := nl.NewNetlinkRequest(getConntrack, unix.NLM_F_DUMP)
		dump.AddData(header)
		var stale [][]byte // a table may have a million entries: only these are in memory at once
		errs = append(errs, dump.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(message []byte) bool {
			if len(message) > nfgenmsgSize && filter.matches(message[nfgenmsgSize:]) {
				stale = append(stale, bytes.Clone(message[nfgenmsgSize:]))
			}
			return true
		}))
		for _, entry := range stale {
			request := nl.NewNetlinkRequest(deleteConntrack, unix.NLM_F_ACK)
			request.AddData(header)
			request.AddRawData(entry)
			if _, err := request.Execute(unix.NETLINK_NETFILTER, 0); !errors.Is(err, unix.ENOENT) { // ENOENT: has ended
				errs = append(errs, err)
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("deleting conntrack entries: %w", err)
	}
	return nil
}

// ForgetRedirected deletes the conntrack entries of UDP flows to targets that are no longer redirected.
func ForgetRedirected(targets iter.Seq[portal.Target], log logrus.FieldLogger) {
	want := map[portal.Target]int{}
	for t := range targets {
		if t.Protocol == portal.UDP {
			want[t] = -1
		}
	}
	if err := ForgetFlows(want); err != nil {
		log.WithError(err).Debug("UDP clients may keep reaching a closed listener")
	}
}

// staleFlows matches the conntrack entries that contradict want.
type staleFlows struct {
	want      map[portal.Target]int
	family    portal.Family
	nodePorts bool
	local     []netip.Prefix
}

// matches reports whether the entry with these attributes matches.
func (s staleFlows) matches(entry []byte) bool {
	forward, reverse := find(entry, nl.CTA_TUPLE_ORIG), find(entry, nl.CTA_TUPLE_REPLY)
	protocol, dst := find(find(forward, nl.CTA_TUPLE_PROTO), nl.CTA_PROTO_NUM), destination(forward)
	if len(protocol) == 0 || !dst.IsValid() {
		return false
	}
	switch portal.Protocol(protocol[0]) {
	case portal.UDP:
	case portal.TCP:
		state := find(find(find(entry, nl.CTA_PROTOINFO), nl.CTA_PROTOINFO_TCP), nl.CTA_PROTOINFO_TCP_STATE)
		if len(state) == 0 || state[0] != nl.TCP_CONNTRACK_SYN_SENT {
			return false
		}
	default:
		return false
	}
	t := portal.Target{Protocol: portal.Protocol(protocol[0]), Addr: dst.Addr().Unmap(), Port: dst.Port()}
	port, ours := s.want[t]
	if !ours && s.nodePorts && ContainsAddr(s.local, t.Addr) {
		t.Addr = s.family.Any()
		port, ours = s.want[t]
	}
	if !ours {
		return false
	}
	// Answers to a redirected flow come from the local port.
	from := source(reverse)
	redirected := from != dst
	if port < 0 {
		return redirected
	}
	return !redirected || int(from.Port()) != port
}

// localPrefixes returns this node's addresses in a family, with all of loopback.
func localPrefixes(family portal.Family) []netip.Prefix {
	prefixes := []netip.Prefix{netip.PrefixFrom(netip.IPv6Loopback(), 128)}
	if family == portal.IPv4 {
		prefixes[0] = netip.MustParsePrefix("127.0.0.0/8")
	}
	addrs, _ := LocalAddrs() // none on error
	for _, addr := range addrs {
		if portal.FamilyOf(addr) == family && !ContainsAddr(prefixes, addr) {
			prefixes = append(prefixes, netip.PrefixFrom(addr, addr.BitLen()))
		}
	}
	return prefixes
}

// ShownSources returns the source address that the endpoint sees, for each of the flows that conntrack has. It differs
// from the client's if a rule translates it. ShownSources reads the whole table, which may be large, and needs
// CAP_NET_ADMIN.
func ShownSources(of map[ClientFlow]bool) (map[ClientFlow]netip.Addr, error) {
	shown := map[ClientFlow]netip.Addr{}
	for _, family := range portal.Families {
		flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, netlink.InetFamily(netlinkFamily(family)))
		if err != nil {
			return nil, err
		}
		for _, f := range flows {
			client, _ := netip.AddrFromSlice(f.Forward.SrcIP)
			endpoint, _ := netip.AddrFromSlice(f.Forward.DstIP)
			source, _ := netip.AddrFromSlice(f.Reverse.DstIP)
			flow := ClientFlow{portal.Protocol(f.Forward.Protocol), client.Unmap(), netip.AddrPortFrom(endpoint.Unmap(), f.Forward.DstPort)}
			if of[flow] {
				shown[flow] = source.Unmap()
			}
		}
	}
	return shown, nil
}
