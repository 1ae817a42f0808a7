package diagnose

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/kernel"
	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/admin/client"
)

// What is looked at on the node itself.

// reachTime is how long an endpoint has to answer: longer than the network needs, and one packet lost.
const reachTime = 1200 * time.Millisecond

// reach connects to TCP endpoints that do badly, and of one Service to all. Of one that is silent it tries
// another port: if that is refused, the host is there, and something drops what goes to the port.
func reach(ctx context.Context, s *subject) (all []Finding) {
	if s.status.Via != "" { // not by everybody here
		return nil
	}
	var mu sync.Mutex
	var trying sync.WaitGroup
	tried := map[string]bool{}
	s.ports(func(p place) {
		if p.port.Protocol != "TCP" {
			return
		}
		for i := range p.port.Endpoints {
			e := &p.port.Endpoints[i]
			if tried[e.Address] || len(tried) >= most || !e.State.Failing() && (s.Service == "" || !e.Ready) {
				continue
			}
			tried[e.Address] = true
			trying.Go(func() {
				if f, is := reachOne(ctx, p, e); is {
					mu.Lock()
					all = append(all, f)
					mu.Unlock()
				}
			})
		}
	})
	trying.Wait()
	return all
}

func reachOne(ctx context.Context, p place, e *api.Endpoint) (f Finding, is bool) {
	at, err := netip.ParseAddrPort(e.Address)
	if err != nil {
		return f, false
	}
	began := time.Now()
	err = dial(ctx, at)
	took := time.Since(began).Round(time.Millisecond)
	f = Finding{Severity: Warning, Object: p.object}
	switch {
	case err == nil, e.Quarantine != nil && strings.Contains(e.Quarantine.Cause, "refused"): // which is told
		return f, false
	case errors.Is(err, syscall.ECONNREFUSED):
		f.Wrong, f.Known, f.Remedy = endpointName(e)+" refuses connections", fmt.Sprintf("tried from here: refused after %s", took), remedyFor("refused", p.name)
	case isTimeout(err):
		f.Wrong, f.Known = endpointName(e)+" is silent: nobody answers at that address", fmt.Sprintf("tried from here: no answer within %s, nor at another port", reachTime)
		f.Remedy = "is the Pod there, its node up, and a route to it? kubectl get pod -o wide; ip route get " + at.Addr().String()
		if errors.Is(dial(ctx, netip.AddrPortFrom(at.Addr(), otherPort(at.Port()))), syscall.ECONNREFUSED) {
			f.Wrong, f.Known = endpointName(e)+" is silent, but its host answers: something drops what is sent to that port", fmt.Sprintf("tried from here: no answer within %s, while another port refused at once", reachTime)
			f.Remedy = "a NetworkPolicy or firewall? kubectl get networkpolicy -A; nft list ruleset on the Pod's node; or the backlog of the process is full: ss -ltn in the Pod"
		}
	default:
		f.Wrong, f.Known, f.Remedy = endpointName(e)+" cannot be reached from here", fmt.Sprintf("tried from here: %v", err), "ip route get "+at.Addr().String()
	}
	return f, true
}

// otherPort returns one on which hardly anybody listens.
func otherPort(port uint16) uint16 {
	if port == 1 {
		return 2
	}
	return 1
}

func dial(ctx context.Context, at netip.AddrPort) error {
	d := net.Dialer{Timeout: reachTime}
	c, err := d.DialContext(ctx, "tcp", at.String())
	if err == nil {
		c.Close()
	}
	return err
}

func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}

// routes asks the kernel for a route to each VIP.
func routes(_ context.Context, s *subject) (all []Finding) {
	if s.status.PortalMode == "none" {
		return nil
	}
	s.vips(func(p place, vip netip.AddrPort) {
		if _, err := kernel.SourceTo(vip); err != nil && len(all) < most {
			all = append(all, Finding{"", Failing, p.object, "this node's own processes cannot send to " + vip.Addr().String(), fmt.Sprintf("asked the kernel for a route: %v", err),
				"ip route get " + vip.Addr().String() + ": a route of type unreachable or prohibit, or none; a default route will do, or --portal=address"})
		}
	})
	return all
}

// foreignRules looks for rules that name a VIP and are not usher's.
func foreignRules(ctx context.Context, s *subject) (all []Finding) {
	if s.status.PortalMode == "none" { // which takes nothing at VIPs
		return nil
	}
	var rules [][]byte
	for _, program := range []string{"iptables-save", "ip6tables-save"} {
		text, err := output(ctx, program, "-t", "nat")
		if err != nil {
			all = append(all, Finding{"", Note, "node", "whether others have rules for the same addresses is not known", err.Error(), "look where there is " + program + ", as root"})
		}
		rules = append(rules, text)
	}
	found := 0
	s.vips(func(p place, vip netip.AddrPort) {
		for _, text := range rules {
			for line := range bytes.Lines(text) {
				line, addr := string(line), vip.Addr()
				if !strings.Contains(line, fmt.Sprintf(" -d %s/%d ", addr, addr.BitLen())) || strings.Contains(line, "USHER-") || found >= most {
					continue
				}
				found++
				all = append(all, Finding{"", Warning, p.object, "somebody else has a rule for " + addr.String() + ", which may come first", "iptables-save: " + strings.TrimSpace(line),
					"is kube-proxy still running here? Stop it, and take its rules out: kube-proxy --cleanup"})
				return
			}
		}
	})
	return all
}

// firewall tries whether a host firewall drops what the portal redirects, or health checks, and looks for rules of others that
// do. Where no connection can be tried, the rules count.
func firewall(ctx context.Context, s *subject) (all []Finding) {
	mode := s.status.PortalMode
	if mode != "iptables" && mode != "nftables" {
		return nil
	}
	chains, rulesErr := kernel.InputDrops()
	where := "no chain for INPUT that drops is known"
	if len(chains) > 0 {
		where = "may be dropped by " + strings.Join(chains, ", ")
	}
	services := Finding{"", Warning, "node", "a host firewall may drop what the portal redirects: clients of all Services hang then", where, "accept 192.0.0.117 and fd75:7368:6572::1 in the firewall, and the health check node ports"}
	checks := services
	checks.Wrong, checks.Remedy = "a host firewall drops health checks of load balancers: they take this node for unhealthy", "accept the health check node ports in the firewall"
	tried, err := false, error(nil)
	try := func(f Finding, to []netip.AddrPort) {
		for _, at := range to {
			var refusal string
			if err == nil {
				refusal, err = kernel.TryInput(ctx, at)
			}
			if tried = tried || err == nil; err == nil && refusal != "" {
				f.Known = fmt.Sprintf("a connection to port %d of %s by an interface of its own %s; %s", at.Port(), at.Addr(), refusal, where)
				all = append(all, f)
				return // one of them will do, and each takes its time
			}
		}
	}
	for _, family := range portal.Families {
		if to := s.redirected(family); len(to) > 0 { // otherwise the family may be off
			try(services, to)
			try(checks, s.healthChecks(family))
		}
	}
	switch {
	case err == nil && tried || err == nil && len(chains) == 0:
		return all
	case err == nil:
		err = errors.New("no Service has a VIP to try")
	}
	services.Known = where + "; no connection was tried: " + err.Error()
	if len(chains) == 0 {
		services.Severity, services.Wrong, services.Remedy = Note, "whether a host firewall drops what the portal redirects is not proven", "usher diagnose on the node, as root"
		if rulesErr != nil {
			services.Known = errors.Join(err, rulesErr).Error()
		}
	}
	return append(all, services)
}

// redirected returns an address and TCP port at which the portal redirects all clients.
func (s *subject) redirected(family portal.Family) (one []netip.AddrPort) {
	s.ports(func(p place) {
		for _, r := range p.port.Rules {
			if at, err := netip.ParseAddrPort(r.VIP); err == nil && len(one) == 0 && r.Action == "redirect" && r.Protocol == "TCP" && len(r.Sources) == 0 &&
				!at.Addr().IsUnspecified() && portal.FamilyOf(at.Addr()) == family {
				one = append(one, at)
			}
		}
	})
	return one
}

// healthChecks returns where health check node ports are answered. What listens at [::] is of both families.
func (s *subject) healthChecks(family portal.Family) (all []netip.AddrPort) {
	for _, text := range s.status.HealthChecks {
		at, err := netip.ParseAddrPort(text)
		switch {
		case err != nil, at.Addr().IsLoopback():
		case at.Addr() == netip.IPv6Unspecified():
			all = append(all, netip.AddrPortFrom(family.Any(), at.Port()))
		case portal.FamilyOf(at.Addr()) == family:
			all = append(all, at)
		}
	}
	return all
}

// output returns what a program prints. The error tells what it complains about.
func output(ctx context.Context, name string, args ...string) ([]byte, error) {
	out, err := exec.CommandContext(ctx, name, args...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return out, fmt.Errorf("%s: %w: %s", name, err, bytes.TrimSpace(exit.Stderr))
	}
	return out, err
}

// source compares the clients' own addresses, with which usher sends to some endpoints, with the sources that
// those see: a rule of another program may translate them, such as a CNI's that masquerades what leaves the
// node. It reads conntrack's table once, for the last connections.
func source(ctx context.Context, s *subject) (all []Finding) {
	const last = 1000
	list, err := s.client.Connections(ctx, client.ConnectionQuery{State: "all", Service: s.Service, Max: last})
	if err != nil {
		return nil
	}
	protocols := map[string]portal.Protocol{"TCP": portal.TCP, "UDP": portal.UDP}
	services := map[kernel.ClientFlow]string{}
	wanted := map[kernel.ClientFlow]bool{}
	for i := range list.Items {
		c := &list.Items[i]
		n := len(c.Attempts)
		if n == 0 || protocols[c.Protocol] == 0 || c.Attempts[n-1].Endpoint != c.Endpoint || c.Attempts[n-1].Source != portal.SeenClient.String() {
			continue
		}
		from, err1 := netip.ParseAddrPort(c.Client)
		to, err2 := netip.ParseAddrPort(c.Endpoint)
		if err1 == nil && err2 == nil {
			flow := kernel.ClientFlow{Protocol: protocols[c.Protocol], Client: from.Addr(), Endpoint: to}
			services[flow], wanted[flow] = c.Service, true
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	shown, err := kernel.ShownSources(wanted)
	if err != nil {
		return []Finding{{"", Note, "node", "whether endpoints see their clients' own addresses is not known", err.Error(), "usher diagnose on the node, as root"}}
	}
	named := map[netip.Addr]bool{} // a rule concerns many clients: one for each address that is shown in their place
	for flow, address := range shown {
		if address == flow.Client || named[address] {
			continue
		}
		named[address] = true
		all = append(all, Finding{"", Warning, "Service " + services[flow], "endpoint " + flow.Endpoint.String() + " does not see its client's address",
			fmt.Sprintf("conntrack: what %s sends to it comes from %s", flow.Client, address),
			"a rule of another program on this node translates it, perhaps the CNI's that masquerades what leaves the node: docs/services.md"})
	}
	return all
}

// nearFull is from where on room is short.
const nearFull = 0.9

func conntrack(_ context.Context, s *subject) []Finding {
	number := func(name string) float64 {
		text, _ := os.ReadFile("/proc/sys/net/netfilter/" + name)
		n, _ := strconv.ParseFloat(string(bytes.TrimSpace(text)), 64)
		return n
	}
	return append(conntrackRoom(number("nf_conntrack_count"), number("nf_conntrack_max")), conntrackSettings(s.status.Conntrack, number)...)
}

// conntrackSettings compares the settings that usher was to make with what they are; 0 if that is not known.
func conntrackSettings(wanted map[string]int, number func(name string) float64) []Finding {
	var differ []string
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		now, want := number(name), float64(wanted[name])
		if now != 0 && now != want && !(api.RaisedOnly(name) && now > want) {
			differ = append(differ, fmt.Sprintf("%s is %.0f, and should be %.0f", name, now, want))
		}
	}
	if len(differ) == 0 {
		return nil
	}
	return []Finding{{"", Warning, "node", "the kernel's connection tracking is not set as usher's configuration, or kube-proxy's default, has it", strings.Join(differ, "; "),
		"usher run --init-only with the flags of this usher, as root and where /proc/sys can be written, such as a privileged init container"}}
}

// conntrackRoom judges so many entries, of so many at the most; 0 if that is not known.
func conntrackRoom(now, most float64) []Finding {
	if most == 0 || now < nearFull*most {
		return nil
	}
	return []Finding{{"", Failing, "node", "the kernel's connection tracking is nearly full: it drops packets of new connections then", fmt.Sprintf("%.0f of %.0f entries", now, most),
		"usher run --conntrack-min, --conntrack-max-per-core; or sysctl -w net.netfilter.nf_conntrack_max=…"}}
}

// names asks a DNS server for the Services.
func names(ctx context.Context, s *subject) (all []Finding) {
	if s.DNS == "" {
		return nil
	}
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, s.DNS)
	}}
	asked := 0
	s.vips(func(p place, vip netip.AddrPort) {
		if ctx.Err() != nil || asked >= 5 || p.port.VIP != vip.String() { // the first, of which the name tells
			return
		}
		asked++
		namespace, name, _ := strings.Cut(p.name, "/")
		full := name + "." + namespace + ".svc." + s.Domain + "."
		got, err := resolver.LookupHost(ctx, full)
		switch {
		case err != nil:
			all = append(all, Finding{"", Failing, p.object, s.DNS + " has no answer for " + full, err.Error(), "does the DNS server run, and is " + s.Domain + " its domain? --dns-domain says another"})
		case !slices.Contains(got, vip.Addr().String()):
			all = append(all, Finding{"", Warning, p.object, s.DNS + " tells another address of " + full, fmt.Sprintf("it says %s, usher serves %s", strings.Join(got, ", "), vip.Addr()),
				"do both take their Services from the same place?"})
		}
	})
	return all
}
