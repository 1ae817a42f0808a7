package diagnose

import (
	"bytes"
	"cmp"
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

// Checks of the node itself.

// reachTime is the time limit for an endpoint to answer: enough for the network and one lost packet.
const reachTime = 1200 * time.Millisecond

// reach connects to failing TCP endpoints and, if only one Service is checked, to its ready ones, too. If an endpoint
// does not answer, it tries another port. If that port refuses, the host is up: packets to the endpoint's port are
// dropped, or its listen backlog is full.
func reach(ctx context.Context, s *subject) (all []Finding) {
	if s.status.Via != "" { // usher connects to endpoints through a tunnel, and this process may have no route to them
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
			if tried[e.Address] || len(tried) >= maxServices || !e.State.Failing() && (s.Service == "" || !e.Ready) {
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
	if err := ctx.Err(); err != nil {
		all = append(all, cannotCheck("whether all failing endpoints can be reached", err))
	}
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
	case ctx.Err() != nil: // the time for checks is over; the endpoint may be fine
		return f, false
	case err == nil, e.Quarantine != nil && strings.Contains(e.Quarantine.Cause, "refused"): // it is up, or the check "quarantine" reports it
		return f, false
	case errors.Is(err, syscall.ECONNREFUSED):
		f.Wrong, f.Known, f.Remedy = endpointName(e)+" refuses connections", fmt.Sprintf("test from this node: refused after %s", took), remedyFor("refused", p.name)
	case os.IsTimeout(err):
		f.Wrong, f.Known = endpointName(e)+" does not answer: nothing answers at that address", fmt.Sprintf("test from this node: no answer within %s, nor at another port", reachTime)
		f.Remedy = "does the Pod exist, is its node up, and is there a route to it? kubectl get pod -o wide; ip route get " + at.Addr().String()
		if errors.Is(dial(ctx, netip.AddrPortFrom(at.Addr(), otherPort(at.Port()))), syscall.ECONNREFUSED) {
			wrong, known := endpointName(e)+" does not answer, but its host does: ", fmt.Sprintf("test from this node: no answer within %s, while another port refused at once", reachTime)
			if e.NoResponse > 0 { // the kernel completes connections for a process that hangs, until the backlog is full
				f.Wrong, f.Known = wrong+"its process probably hangs, and its listen backlog is full", fmt.Sprintf("%s; %d connections got no response before: the process probably hangs", known, e.NoResponse)
				f.Remedy = "restart the process, or find out why it hangs; in 'ss -ltn' in the Pod, Recv-Q is above Send-Q if its listen backlog is full"
			} else {
				cause := "packets to that port are dropped, or its listen backlog is full"
				f.Wrong, f.Known = wrong+cause, known+": "+cause
				f.Remedy = "is there a NetworkPolicy or firewall? kubectl get networkpolicy -A; nft list ruleset on this node and on the Pod's. Is the process's listen backlog full? ss -ltn in the Pod"
			}
		}
		return f, ctx.Err() == nil
	default:
		f.Wrong, f.Known, f.Remedy = endpointName(e)+" cannot be reached from this node", fmt.Sprintf("test from this node: %v", err), "ip route get "+at.Addr().String()
	}
	return f, true
}

// otherPort returns a port that hardly any server listens on.
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

// routes checks that the kernel has a route to each VIP.
func routes(_ context.Context, s *subject) []Finding {
	if s.status.PortalMode == "none" {
		return nil
	}
	var all []namedFinding
	s.vips(func(p place, vip netip.AddrPort) {
		if _, err := kernel.SourceTo(vip); err != nil {
			all = append(all, namedFinding{Finding{"", Failing, p.object, "processes on this node cannot send to %s", fmt.Sprintf("route lookup in the kernel: %v", err),
				"ip route get " + vip.Addr().String() + " shows an unreachable or prohibit route, or none; add a default route, or use --portal=address"}, vip.Addr().String()})
		}
	})
	return grouped(all, true)
}

// foreignRules searches the nat tables of iptables for rules that name a VIP and are not usher's.
func foreignRules(ctx context.Context, s *subject) (all []Finding) {
	if s.status.PortalMode == "none" { // usher does not redirect VIPs
		return nil
	}
	programs := []string{"iptables-save", "ip6tables-save"}
	var rules [][]byte
	for _, program := range programs {
		text, err := output(ctx, program, "-t", "nat")
		if err != nil {
			all = append(all, Finding{"", Note, "node", "cannot check for rules of other programs for the Services' VIPs", err.Error(), "run usher diagnose as root where " + program + " is installed"})
		}
		rules = append(rules, text)
	}
	var others []namedFinding
	s.vips(func(p place, vip netip.AddrPort) {
		for i, text := range rules {
			for line := range bytes.Lines(text) {
				line, addr := string(line), vip.Addr()
				if !strings.Contains(line, fmt.Sprintf(" -d %s/%d ", addr, addr.BitLen())) || strings.Contains(line, "USHER-") {
					continue
				}
				others = append(others, namedFinding{Finding{"", Warning, p.object, "another program has a rule for %s that may take precedence", programs[i] + ": " + strings.TrimSpace(line),
					"is kube-proxy still running here? Stop it, and remove its rules: kube-proxy --cleanup"}, addr.String()})
				return
			}
		}
	})
	return append(all, grouped(others, true)...)
}

// firewall tests with connections whether a host firewall drops redirected packets or health checks. Where no test is
// possible, it reports rules of other programs that may drop them.
func firewall(ctx context.Context, s *subject) (all []Finding) {
	mode := s.status.PortalMode
	if mode != "iptables" && mode != "nftables" {
		return nil
	}
	chains, rulesErr := kernel.InputDrops()
	where := "found no INPUT chain that drops packets"
	if len(chains) > 0 {
		where = "may be dropped by " + strings.Join(chains, ", ")
	}
	services := Finding{"", Warning, "node", "a host firewall may drop redirected packets: clients of all Services would hang", where, "in the firewall, accept packets to 192.0.0.117 and fd75:7368:6572::1, to which usher redirects VIPs, and to the health check node ports"}
	checks := services
	checks.Wrong, checks.Remedy = "a host firewall drops load balancer health checks: load balancers consider this node unhealthy", "accept the health check node ports in the firewall"
	tried, err := false, error(nil)
	try := func(f Finding, to []netip.AddrPort) {
		for _, at := range to {
			var refusal string
			if err == nil {
				refusal, err = kernel.TryInput(ctx, at)
			}
			if tried = tried || err == nil; err == nil && refusal != "" {
				f.Known = fmt.Sprintf("a connection to port %d of %s through a test interface %s; %s", at.Port(), at.Addr(), refusal, where)
				if i := slices.IndexFunc(all, func(o Finding) bool { return o.Wrong == f.Wrong }); i >= 0 { // of the other family
					all[i].Known += "; " + f.Known
				} else {
					all = append(all, f)
				}
				return // one failure is sufficient, and each takes time
			}
		}
	}
	for _, family := range portal.Families {
		if to := s.redirected(family); len(to) > 0 { // otherwise the family may be disabled
			try(services, to)
			try(checks, s.healthChecks(family))
		}
	}
	switch {
	case err == nil && (tried || len(chains) == 0), slices.ContainsFunc(all, func(f Finding) bool { return f.Wrong == services.Wrong }):
		return all
	case err == nil:
		err = errors.New("no Service has a VIP to test")
	}
	services.Known = where + "; no test connection: " + err.Error()
	if len(chains) == 0 {
		services.Severity, services.Wrong, services.Remedy = Note, "cannot determine whether a host firewall drops redirected packets", "run usher diagnose on the node, as root"
		if rulesErr != nil {
			services.Known = errors.Join(err, rulesErr).Error()
		}
	}
	return append(all, services)
}

// redirected returns one address and TCP port that the portal redirects for all clients, or none.
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

// healthChecks returns the addresses of health check node ports in a family. A listener at [::] serves both families.
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

// output returns the standard output of a program. The error includes its standard error.
func output(ctx context.Context, name string, args ...string) ([]byte, error) {
	out, err := exec.CommandContext(ctx, name, args...).Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return out, fmt.Errorf("%s: %w: %s", name, err, bytes.TrimSpace(exit.Stderr))
	}
	return out, err
}

// source checks that an endpoint sees the client's address if usher connects to it from that address. A rule of another
// program may translate the address, such as a CNI's masquerading of packets that leave the node. source looks up the
// last connections in conntrack's table.
func source(ctx context.Context, s *subject) (all []Finding) {
	const last = 1000
	list, err := s.client.Connections(ctx, client.ConnectionQuery{State: "all", Service: s.Service, Max: last})
	if err != nil {
		return []Finding{cannotCheck("whether endpoints see client addresses", err)}
	}
	protocols := map[string]portal.Protocol{"TCP": portal.TCP, "UDP": portal.UDP}
	services := map[kernel.ClientFlow]string{}
	wanted := map[kernel.ClientFlow]bool{}
	for i := range list.Items {
		c := &list.Items[i]
		n := len(c.Attempts)
		if n == 0 || protocols[c.Protocol] == 0 || c.Attempts[n-1].Endpoint != c.Endpoint || c.Attempts[n-1].Source != portal.SourceClient.String() {
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
		return []Finding{{"", Note, "node", "cannot check whether endpoints see client addresses", err.Error(), "run usher diagnose on the node, as root"}}
	}
	named := map[netip.Addr]bool{} // one rule affects many clients: report one for each address that replaces theirs
	for flow, address := range shown {
		if address == flow.Client || named[address] {
			continue
		}
		named[address] = true
		all = append(all, Finding{"", Warning, "Service " + services[flow], "endpoint " + flow.Endpoint.String() + " does not see its client's address",
			fmt.Sprintf("conntrack: packets of client %s reach it with source address %s", flow.Client, address),
			"another program's rule on this node translates it, possibly the CNI's masquerading of outbound packets; see docs/services.md"})
	}
	return all
}

// nearFull is the ratio of entries to the maximum from which a table counts as nearly full.
const nearFull = 0.9

func conntrack(_ context.Context, s *subject) []Finding {
	number := func(name string) float64 {
		text, _ := os.ReadFile("/proc/sys/net/netfilter/" + name)
		n, _ := strconv.ParseFloat(string(bytes.TrimSpace(text)), 64)
		return n
	}
	return append(conntrackRoom(number("nf_conntrack_count"), number("nf_conntrack_max")), conntrackSettings(s.status.Conntrack, number)...)
}

// conntrackSettings compares the settings that usher should apply with their current values; 0 means unknown.
func conntrackSettings(wanted map[string]int, number func(name string) float64) []Finding {
	var differ []string
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		now, want := number(name), float64(wanted[name])
		if now != 0 && now != want && !(api.RaisedOnly(name) && now > want) {
			differ = append(differ, fmt.Sprintf("%s is %.0f, should be %.0f", name, now, want))
		}
	}
	if len(differ) == 0 {
		return nil
	}
	return []Finding{{"", Warning, "node", "connection tracking settings differ from those that usher's flags request", strings.Join(differ, "; "),
		"run 'usher run --init-only' with this instance's flags, as root and with a writable /proc/sys, such as in a privileged init container"}}
}

// conntrackRoom compares the number of entries (now) with the maximum (most); 0 means unknown.
func conntrackRoom(now, most float64) []Finding {
	if most == 0 || now < nearFull*most {
		return nil
	}
	return []Finding{{"", Failing, "node", "the connection tracking table is nearly full: when it is full, the kernel drops packets of new connections", fmt.Sprintf("%.0f of %.0f entries", now, most),
		"raise --conntrack-min or --conntrack-max-per-core of usher run; or sysctl -w net.netfilter.nf_conntrack_max=…"}}
}

// names queries the DNS server of --dns for the names of up to five Services.
func names(ctx context.Context, s *subject) []Finding {
	if s.DNS == "" {
		return nil
	}
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, s.DNS)
	}}
	var all []namedFinding
	asked, domain := 0, cmp.Or(strings.TrimSuffix(s.Domain, "."), "cluster.local")
	s.vips(func(p place, vip netip.AddrPort) {
		if ctx.Err() != nil || asked >= 5 || p.port.VIP != vip.String() { // only the first VIP, to which the name resolves
			return
		}
		asked++
		namespace, name, _ := strings.Cut(p.name, "/")
		full := name + "." + namespace + ".svc." + domain + "."
		got, err := resolver.LookupHost(ctx, full)
		switch {
		case err != nil:
			all = append(all, namedFinding{Finding{"", Failing, p.object, s.DNS + " has no answer for %s", err.Error(), "is the DNS server running, and is " + domain + " its domain? If not, set --dns-domain"}, full})
		case !slices.Contains(got, vip.Addr().String()):
			all = append(all, namedFinding{Finding{"", Warning, p.object, s.DNS + " returns another address for %s", fmt.Sprintf("it returns %s, usher serves %s", strings.Join(got, ", "), vip.Addr()),
				"do both read Services from the same API server or files?"}, full})
		}
	})
	return grouped(all, true)
}
