package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"

	"github.com/usherproxy/usher/config/manifest"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/stream"
	"github.com/usherproxy/usher/proxy/trace"
)

// proxyFlags are what a proxy is made of, wherever its Services come from.
type proxyFlags struct {
	portal       string
	proxyPorts   string
	mark         markFlag
	traceEvents  int
	drainTimeout time.Duration
	sctp         string
	proxy        proxy.Options

	nodePorts     nodePortAddresses // parsed already
	podInterfaces portal.Interfaces // from kube-proxy's configuration only
}

// sctpModes are the values of --sctp.
var sctpModes = []string{string(stream.SCTPAuto), string(stream.SCTPOn), string(stream.SCTPOff)}

func (f *proxyFlags) register(flags *pflag.FlagSet) {
	f.proxy = proxy.Defaults()
	o := &f.proxy
	flags.StringVar(&f.portal, "portal", portal.ModeAuto, "how VIPs reach usher: "+strings.Join(portal.Modes(), ", ")+"; auto takes the first that works here")
	flags.StringVar(&f.proxyPorts, "proxy-port-range", "", "`first-last` local ports for listeners that are not on a VIP; empty means any free port")
	f.mark = 0x2000
	flags.Var(&f.mark, "mark", "the bits of the mark (SO_MARK) of usher's own packets to endpoints, by which the portals iptables and nftables leave them alone; 0 means no mark")
	flags.StringVar(&f.sctp, "sctp", string(stream.SCTPAuto), "whether SCTP Services are served: "+strings.Join(sctpModes, ", ")+"; auto does where the kernel's SCTP is in use already, on loads it (which ends what userspace SCTP stacks on this node do), off never touches it")
	flags.DurationVar(&o.CheckInterval, "portal-check-interval", o.CheckInterval, "how often the portal's rules are compared with the kernel's and repaired, and what could not be served is tried again")
	flags.DurationSliceVar(&o.Schedule, "dial-timeouts", o.Schedule, "how long each attempt to connect to an endpoint may take")
	flags.DurationVar(&o.Quarantine.First, "quarantine", o.Quarantine.First, "how long an endpoint that failed is passed over before it is probed; doubles while it keeps failing; 0 switches quarantine off")
	flags.DurationVar(&o.Quarantine.Max, "quarantine-max", o.Quarantine.Max, "longest time between two probes, and longest quarantine of an endpoint that is not probed")
	flags.BoolVar(&o.Quarantine.Probed, "probes", o.Quarantine.Probed, "connect to a TCP endpoint in quarantine from time to time, and pass it over until that succeeds; without it, and for UDP and SCTP, a client's attempt finds out")
	flags.DurationVar(&o.HalfClosed, "half-closed-timeout", o.HalfClosed, "how long a connection lasts that one side has closed and in which nothing moves; 0 means forever")
	flags.DurationVar(&o.IdleTimeout, "connection-idle-timeout", o.IdleTimeout, "how long a connection lasts in which nothing moves; 0 means forever; a Service may set its own by the annotation usher.io/connection-idle-timeout")
	flags.DurationVar(&o.MaxAge, "max-connection-age", o.MaxAge, "how long a connection lasts at the most, less up to a tenth, so that not all end at once; 0 means forever; a Service may set its own by the annotation usher.io/max-connection-age")
	flags.DurationVar(&o.Keepalive, "keepalive", o.Keepalive, "how long a connection is silent before the peers are probed (TCP keepalive, on both sides)")
	flags.Int64Var(&o.MaxConnections, "max-connections", 0, "connections that may be open at once; 0 means as many as open files allow, which is a little under half their limit")
	flags.Int64Var(&o.MaxConnectionsPerPort, "max-connections-per-port", 0, "connections that one service port may have open at once; 0 means half of all when there is little room left")
	flags.Int64Var(&o.MaxClientShare, "max-client-share", o.MaxClientShare, "percent of the connections, and of the UDP sessions, that one client address may have open when there is little room left (the last eighth); 100 means as many as there are")
	flags.DurationVar(&o.UDPIdleTimeout, "udp-idle-timeout", o.UDPIdleTimeout, "how long a UDP session lasts without a datagram; a Service may set its own by the annotation usher.io/udp-idle-timeout")
	flags.Int64Var(&o.MaxUDPSessions, "max-udp-sessions", o.MaxUDPSessions, "UDP sessions that may be open at once, a quarter of the open files limit at the most; beyond it the one that has been idle longest ends")
	flags.Int64Var(&o.MaxUDPSessionsPerPort, "max-udp-sessions-per-port", 0, "UDP sessions that one service port may have open at once; 0 means half of all")
	flags.Int64Var(&o.AffinityPerPort, "max-affinity-per-port", o.AffinityPerPort, "clients that are remembered for one service port with ClientIP affinity")
	flags.Int64Var(&o.AffinityTotal, "max-affinity", o.AffinityTotal, "clients that are remembered for all service ports with ClientIP affinity")
	flags.IntVar(&f.traceEvents, "trace-events", 4096, "steps of connections that are kept in memory")
	flags.DurationVar(&f.drainTimeout, "drain-timeout", 30*time.Second, "how long connections may take to end when usher is stopped")
}

// check returns an error that names the flag that is wrong.
func (f *proxyFlags) check() error {
	o := &f.proxy
	if len(o.Schedule) == 0 {
		return usagef("--dial-timeouts: at least one is needed")
	}
	for _, d := range o.Schedule {
		if d <= 0 {
			return usagef("--dial-timeouts: %s is not a positive duration", d)
		}
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
		least time.Duration
	}{
		{"portal-check-interval", o.CheckInterval, 100 * time.Millisecond},
		{"quarantine", o.Quarantine.First, 0},
		{"quarantine-max", o.Quarantine.Max, 0},
		{"half-closed-timeout", o.HalfClosed, 0},
		{"connection-idle-timeout", o.IdleTimeout, 0},
		{"max-connection-age", o.MaxAge, 0},
		{"keepalive", o.Keepalive, time.Second},
		{"udp-idle-timeout", o.UDPIdleTimeout, 100 * time.Millisecond},
		{"drain-timeout", f.drainTimeout, 0},
	} {
		if d.value < d.least {
			return usagef("--%s: %s is less than %s", d.flag, d.value, d.least)
		}
	}
	for _, n := range []struct {
		flag         string
		value, least int64
	}{
		{"max-connections", o.MaxConnections, 0},
		{"max-connections-per-port", o.MaxConnectionsPerPort, 0},
		{"max-udp-sessions", o.MaxUDPSessions, 1},
		{"max-udp-sessions-per-port", o.MaxUDPSessionsPerPort, 0},
		{"max-affinity-per-port", o.AffinityPerPort, 1},
		{"max-affinity", o.AffinityTotal, 1},
		{"trace-events", int64(f.traceEvents), 1},
	} {
		if n.value < n.least {
			return usagef("--%s: %d is less than %d", n.flag, n.value, n.least)
		}
	}
	if share := o.MaxClientShare; share < 1 || share > 100 {
		return usagef("--max-client-share: %d is not 1 to 100 percent", share)
	}
	if !slices.Contains(sctpModes, f.sctp) {
		return usagef("--sctp: %q is none of %s", f.sctp, strings.Join(sctpModes, ", "))
	}
	if !slices.Contains(portal.Modes(), f.portal) {
		return usagef("--portal: %q is not one of %s", f.portal, strings.Join(portal.Modes(), ", "))
	}
	_, err := parsePortRange(f.proxyPorts)
	return err
}

// portalOptions returns the options for a portal. check has been called.
func (f *proxyFlags) portalOptions(log logrus.FieldLogger) portal.Options {
	ports, _ := parsePortRange(f.proxyPorts)
	return portal.Options{Log: log, ProxyPorts: ports, NodePortAddresses: f.nodePorts.networks, PodInterfaces: f.podInterfaces, Mark: uint32(f.mark)}
}

// newProxy returns a proxy behind p.
func (f *proxyFlags) newProxy(p portal.Portal, log logrus.FieldLogger) *proxy.Proxy {
	f.proxy.Portal = p // for its DirectDial, too
	o := f.proxy
	o.SCTP = stream.SCTPMode(f.sctp)
	o.Log, o.Trace = log, trace.NewLog(f.traceEvents)
	o.Ports, _ = parsePortRange(f.proxyPorts) // checked
	o.IsPod = f.isPod(log)
	return proxy.New(o)
}

// isPod returns what tells this node's Pods by the interface that the route to them
// leads over; nil if they are told by networks, or cannot be told.
func (f *proxyFlags) isPod(log logrus.FieldLogger) func(netip.Addr) bool {
	if f.podInterfaces == "" {
		return nil
	}
	log = log.WithField("interfaces", string(f.podInterfaces))
	behind, err := f.podInterfaces.Behind()
	if err != nil {
		log.WithError(err).Warn("This node's Pods cannot be told by their interfaces: no client counts as one")
		return nil
	}
	if !f.podInterfaces.Exist() {
		log.Warn("There is no such interface: as long as there is none, no client counts as a Pod of this node")
	}
	return behind
}

// parsePortRange parses "first-last"; "" is any port.
func parsePortRange(s string) (portal.PortRange, error) {
	if s == "" {
		return portal.PortRange{}, nil
	}
	first, last, _ := strings.Cut(s, "-")
	a, errA := strconv.ParseUint(first, 10, 16)
	b, errB := strconv.ParseUint(last, 10, 16)
	if errA != nil || errB != nil || a < 1 || a > b {
		return portal.PortRange{}, usagef("--proxy-port-range: %q is not FIRST-LAST with ports from 1 to 65535", s)
	}
	return portal.PortRange{First: uint16(a), Last: uint16(b)}, nil
}

// defaultServiceCIDRs is the default of --service-cidr.
var defaultServiceCIDRs = []string{manifest.DefaultServiceCIDR.String()}

const serviceCIDRUsage = "where Services without a cluster IP get one, for each IP family at most one network"

// parseCIDRs parses the value of --service-cidr.
func parseCIDRs(list []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, s := range list {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, usagef("--service-cidr: %q is not a CIDR such as 10.96.0.0/12", s)
		}
		if p != p.Masked() {
			return nil, usagef("--service-cidr: %s has bits beyond its prefix; %s is meant, perhaps", p, p.Masked())
		}
		for _, other := range out {
			if other.Addr().Is4() == p.Addr().Is4() {
				return nil, usagef("--service-cidr: %s and %s are of the same IP family; there is one for each", other, p)
			}
		}
		out = append(out, p)
	}
	if len(out) == 0 {
		return nil, usagef("--service-cidr: at least one is needed")
	}
	return out, nil
}

// plural returns "1 thing" or "n things".
func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
