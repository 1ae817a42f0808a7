package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/usherproxy/usher/cmd/usher/cli"
	"github.com/usherproxy/usher/cmd/usher/daemon"
	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/manifest"
	"github.com/usherproxy/usher/config/translate"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/modes"
	"github.com/usherproxy/usher/proxy/accesslog"
	"github.com/usherproxy/usher/proxy/dns"
)

// configFlags are the flags from which a daemon's Config is made. Most are fields of
// it; what has to be parsed is in it when complete has been called. Each command
// registers the groups that it has, and the rest is as Defaults says.
type configFlags struct {
	daemon.Config

	allocation        allocationFlags
	clusterCIDRs      []string
	loadBalancers     []string
	nodePortAddresses []string
	nodeIP            netip.Addr // from kube-proxy's configuration only
	proxyPorts        string
	dnsAddress        string
	dnsUpstreams      []string
	logs              logFlags
}

func newConfigFlags() configFlags {
	f := configFlags{Config: daemon.Defaults()}
	f.Version = version
	return f
}

// registerSource registers where Services come from: files, or an API server.
func (f *configFlags) registerSource(flags *pflag.FlagSet) {
	flags.StringArrayVar(&f.Manifests, "manifests", nil, "`path` of a file or folder with manifests (YAML or JSON): Service, EndpointSlice, Endpoints, Node, ServiceCIDR, List; - is standard input, read once; may be repeated")
	f.allocation.register(flags)
	flags.StringVar(&f.Cluster.Kubeconfig, "kubeconfig", "", "`file` that says how to reach the API server")
	flags.StringVar(&f.Cluster.Context, "context", "", "context of the kubeconfig; empty means its current one")
	flags.StringVar(&f.Cluster.Server, "server", "", "`URL` of the API server, instead of the kubeconfig's or the Pod's")
}

// registerNode registers who this node is, wherever Services come from.
func (f *configFlags) registerNode(flags *pflag.FlagSet) {
	flags.StringToStringVar(&f.NodeLabels, "node-labels", nil, "`labels` of this node, such as topology.kubernetes.io/zone=a, whatever its Node object says; topology keys and hints ask for them")
}

// registerVia registers how endpoints are reached.
func (f *configFlags) registerVia(flags *pflag.FlagSet) {
	cli.Choice(flags, (*string)(&f.Via), "via", "", "how endpoints are reached: "+strings.Join(daemon.Vias, ", ")+"; portforward goes through the API server, from where Pods cannot be reached (TCP only); auto tries direct first. With both, --dial-timeouts is 2s,2s,4s if not given, and --node-name is empty", daemon.Vias...)
}

// registerDNS registers where the names of Services are answered.
func (f *configFlags) registerDNS(flags *pflag.FlagSet) {
	flags.StringVar(&f.dnsAddress, "dns", "", "`address` at which the names of Services are answered (UDP and TCP; port 53, or address:port); empty means nowhere")
	f.registerDomain(flags)
	flags.StringSliceVar(&f.dnsUpstreams, "dns-upstream", nil, "`addresses` of the resolvers that are asked for all other names; empty means those in "+dns.DefaultResolvConf)
}

func (f *configFlags) registerDomain(flags *pflag.FlagSet) {
	flags.StringVar(&f.DNS.Domain, "dns-domain", dns.DefaultDomain, "the cluster's `domain`, in which the names of Services are")
}

// registerProxy registers how connections are served, wherever Services come from.
func (f *configFlags) registerProxy(flags *pflag.FlagSet) {
	o := &f.Proxy
	cli.Choice(flags, &f.Mode, "portal", "", "how VIPs reach usher: "+strings.Join(modes.Names(), ", ")+"; auto takes the first that works here", modes.Names()...)
	cli.Choice(flags, &f.Portal.AddressNamespace, "address-namespace", "", "whether the portal address has VIPs in a network namespace of usher's own, so that they clash with no process of the node: "+strings.Join(portal.AddressNamespaces, ", ")+"; auto does where it works, which takes CAP_SYS_ADMIN and a node that forwards packets", portal.AddressNamespaces...)
	cli.Choice(flags, &f.Portal.IPTablesTarget, "iptables-target", "", "how rules of the portal iptables lead to usher: "+strings.Join(portal.IPTablesTargets, ", ")+"; dnat leads to an address of usher's own, redirect is the classic rule, which neither serves SCTP nor Pods behind interfaces without an IPv4 address", portal.IPTablesTargets...)
	flags.StringVar(&f.proxyPorts, "proxy-port-range", "", "`first-last` local ports for listeners that are not on a VIP; empty means any free port")
	flags.Var((*markFlag)(&f.Portal.Mark), "mark", "the bits of the mark (SO_MARK) of usher's own packets to endpoints and to the API server, by which the portals iptables and nftables leave them alone; 0 means no mark")
	flags.Var((*clientAddressFlag)(&f.Portal.NodeAddress), "client-address", "whom endpoints see: auto, the client's own address where the answers come back through this node and the portal (iptables, nftables) can lead them to usher, and otherwise the node's; node, always the node's; a Service may say node by the annotation usher.io/client-address")
	flags.Var((*aliasesFlag)(&f.Portal.Aliases), "client-aliases", "`networks`, at most one of each IP family, that nothing on this node talks to, for endpoints that see a client on their own bridge; they never leave the node")
	cli.Choice(flags, (*string)(&o.SCTP), "sctp", "", "whether SCTP Services are served: "+strings.Join(daemon.SCTPModes, ", ")+"; auto does where the kernel's SCTP is in use already, on loads it (which ends what userspace SCTP stacks on this node do), off never touches it", daemon.SCTPModes...)
	flags.DurationVar(&o.CheckInterval, "portal-check-interval", o.CheckInterval, "how often it is looked whether the portal's rules need repair, where the kernel does not tell of changes, and what could not be served is tried again")
	cli.Group(flags, "Portal: how clients reach usher")
	flags.DurationSliceVar(&o.Schedule, "dial-timeouts", o.Schedule, "how long each attempt to connect to an endpoint may take")
	flags.DurationVar(&o.Quarantine.First, "quarantine", o.Quarantine.First, "how long an endpoint that failed is passed over before it is probed; doubles while it keeps failing; 0 switches quarantine off")
	flags.DurationVar(&o.Quarantine.Max, "quarantine-max", o.Quarantine.Max, "longest time between two probes, and longest quarantine of an endpoint that is not probed")
	flags.BoolVar(&o.Quarantine.Probed, "probes", o.Quarantine.Probed, "connect to a TCP endpoint in quarantine from time to time, and pass it over until that succeeds; without it, and for UDP and SCTP, a client's attempt finds out")
	flags.TextVar(&o.Scheduler, "scheduler", o.Scheduler, "`name` of the scheduler, which chooses the endpoint for a new connection: "+strings.Join(config.SchedulerNames(), ", ")+"; a Service may name another one by the annotation "+translate.AnnotationScheduler)
	flags.TextVar(&o.Probe.Check, "probe", o.Probe.Check, "`how` all endpoints are probed, whether they have failed or not: "+config.CheckForms+"; a Service may say otherwise by the annotation "+translate.AnnotationProbe)
	flags.DurationVar(&o.Probe.Interval, "probe-interval", o.Probe.Interval, "how long it is from the end of such a probe to the next one of that endpoint; "+translate.AnnotationProbeInterval+" for one Service")
	flags.DurationVar(&o.Probe.Timeout, "probe-timeout", o.Probe.Timeout, "how long such a probe may take; "+translate.AnnotationProbeTimeout+" for one Service")
	flags.IntVar(&o.Probe.Rise, "probe-rise", o.Probe.Rise, "how many of them in a row must succeed to end the quarantine that they have begun; "+translate.AnnotationProbeRise+" for one Service")
	flags.IntVar(&o.Probe.Fall, "probe-fall", o.Probe.Fall, "how many of them in a row must fail for an endpoint to be in quarantine; "+translate.AnnotationProbeFall+" for one Service")
	flags.IntVar(&o.EndpointLimit, "max-connections-per-endpoint", o.EndpointLimit, "TCP connections, or SCTP associations, that each endpoint of a service port may have open at once; clients that come when all have as many wait in line; 0 means any number; a Service may set its own by the annotation "+translate.AnnotationEndpointLimit)
	flags.DurationVar(&o.QueueTimeout, "queue-timeout", o.QueueTimeout, "how long such a client waits before it is reset; a Service may set its own by the annotation "+translate.AnnotationQueueTimeout)
	flags.DurationVar(&o.SlowStart, "slow-start", o.SlowStart, "how long an endpoint that is new, or ready again, has less than its share of new connections, which grows from a tenth; not with schedulers that hash; 0 is not at all; a Service may set its own by the annotation usher.io/slow-start")
	cli.Group(flags, endpointGroup)
	flags.DurationVar(&o.HalfClosed, "half-closed-timeout", o.HalfClosed, "how long a connection lasts that one side has closed and in which nothing moves; 0 means forever")
	flags.DurationVar(&o.IdleTimeout, "connection-idle-timeout", o.IdleTimeout, "how long a connection lasts in which nothing moves; 0 means forever; a Service may set its own by the annotation usher.io/connection-idle-timeout")
	flags.DurationVar(&o.MaxAge, "max-connection-age", o.MaxAge, "how long a connection lasts at the most, less up to a tenth, so that not all end at once; 0 means forever; a Service may set its own by the annotation usher.io/max-connection-age")
	flags.DurationVar(&o.EndpointDrainTimeout, "endpoint-drain-timeout", o.EndpointDrainTimeout, "how long a connection lasts after its endpoint left the Service or began to terminate; it ends in a silent moment, or after another eighth of that time; 0 means as long as client and endpoint like; a Service may set its own by the annotation usher.io/drain-timeout")
	flags.DurationVar(&o.Keepalive, "keepalive", o.Keepalive, "how long a connection is silent before the peers are probed (TCP keepalive, on both sides)")
	cli.Group(flags, "How long connections last")
	flags.Int64Var(&o.MaxConnections, "max-connections", 0, "connections that may be open at once; 0 means as many as open files allow, which is a little under half their limit")
	flags.Int64Var(&o.MaxConnectionsPerPort, "max-connections-per-port", 0, "connections that one service port may have open at once; 0 means half of all when there is little room left")
	flags.Int64Var(&o.MaxClientShare, "max-client-share", o.MaxClientShare, "percent of the connections, and of the UDP sessions, that one client address may have open when there is little room left (the last eighth); 100 means as many as there are")
	flags.DurationVar(&o.UDPIdleTimeout, "udp-idle-timeout", o.UDPIdleTimeout, "how long a UDP session lasts without a datagram once an endpoint has answered; before, it is 1m at most; a Service may set its own, for both, by the annotation usher.io/udp-idle-timeout")
	flags.Int64Var(&o.MaxUDPSessions, "max-udp-sessions", o.MaxUDPSessions, "UDP sessions that may be open at once, a quarter of the open files limit at the most; beyond it the one that has been idle longest ends")
	flags.Int64Var(&o.MaxUDPSessionsPerPort, "max-udp-sessions-per-port", 0, "UDP sessions that one service port may have open at once; 0 means half of all")
	flags.Int64Var(&o.AffinityPerPort, "max-affinity-per-port", o.AffinityPerPort, "clients that are remembered for one service port with ClientIP affinity")
	flags.Int64Var(&o.AffinityTotal, "max-affinity", o.AffinityTotal, "clients that are remembered for all service ports with ClientIP affinity")
	flags.IntVar(&f.TraceEvents, "trace-events", f.TraceEvents, "steps of connections that are kept in memory")
	flags.IntVar(&f.TraceConnections, "trace-connections", f.TraceConnections, "connections that are kept besides when they have ended, of those that failed, were retried or slow; 0 is none")
	flags.DurationVar(&f.Slow, "slow", f.Slow, "how long the client of a slow connection waits for the endpoint's first byte, or more; 0 means that none is slow")
	flags.DurationVar(&f.DrainTimeout, "drain-timeout", f.DrainTimeout, "how long connections may take to end when usher is stopped")
	cli.Group(flags, "Limits and what is kept")
}

const endpointGroup = "Endpoints: which one gets a connection, and how"

// defaultAdminAddress is the default of --admin-address.
const defaultAdminAddress = "127.0.0.1:10249"

// registerServers registers what else is served, and where.
func (f *configFlags) registerServers(flags *pflag.FlagSet) {
	flags.StringVar(&f.SOCKSAddress, "socks", "", "`host:port` for a proxy, SOCKS5 and HTTP, that leads to Services by name, and to everything else directly; without a host 127.0.0.1; empty means none")
	flags.StringVar(&f.AdminAddress, "admin-address", defaultAdminAddress, "`host:port` for the dashboard, /api, /metrics, /proxyMode, /configz; empty means none")
	flags.StringVar(&f.HealthzAddress, "healthz-address", "0.0.0.0:10256", "`host:port` for /healthz and /livez; empty means none, which is the default with --manifests and with --via=portforward or auto")
	flags.BoolVar(&f.HardFail, "bind-address-hard-fail", false, "end if one of these addresses cannot be had, instead of going on without it")
	flags.StringVar(&f.AccessLog.Path, "access-log", "", "`file` to which a line is appended for each connection that has ended; - is standard output, empty means none")
	flags.BoolVar(&f.AccessLogDefault, "access-log-default", f.AccessLogDefault, "whether the access log has the connections of Services that do not say by the annotation usher.io/access-log")
	cli.Choice(flags, (*string)(&f.AccessLog.Format), "access-log-format", "", "how these lines are written: "+strings.Join(accesslog.Formats, " or "), accesslog.Formats...)
	cli.Group(flags, "Addresses that usher serves, and the access log")
}

// fromFiles reports whether Services come from files.
func (f *configFlags) fromFiles() bool { return len(f.Manifests) > 0 }

// oneSource returns an error if the flags name two sources.
func (f *configFlags) oneSource() error {
	if f.fromFiles() && (f.Cluster.Kubeconfig != "" || f.Cluster.Context != "" || f.Cluster.Server != "") {
		return usagef("--manifests says that Services come from files; --kubeconfig, --context and --server, from an API server; there is one source")
	}
	return nil
}

// complete parses what has to be parsed, checks all, and makes the logger.
func (f *configFlags) complete(cmd *cobra.Command) (err error) {
	var given manifest.Options
	if err := f.allocation.parse(&given); err != nil {
		return err
	}
	f.ServiceCIDRs, f.ServiceNodePorts, f.LoadBalancerCIDRs = given.ServiceCIDRs, given.NodePorts, given.LoadBalancerCIDRs
	if f.PodNetworks, err = parseCIDRs(f.clusterCIDRs, "--cluster-cidr: %q is not a CIDR such as 10.244.0.0/16"); err != nil {
		return err
	}
	if f.LoadBalancers, err = parseLoadBalancers(f.loadBalancers); err != nil {
		return err
	}
	if f.NodePorts, err = parseNodePortAddresses(f.nodePortAddresses, f.nodeIP); err != nil {
		return err
	}
	if f.Portal.ProxyPorts, err = parsePortRange(f.proxyPorts); err != nil {
		return err
	}
	if err := f.parseDNS(); err != nil {
		return err
	}
	if err := f.Check(); err != nil {
		return &usageError{err}
	}
	log, err := f.logs.logger(cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	logKlog(log)
	f.Log = log
	return nil
}

func (f *configFlags) parseDNS() (err error) {
	if f.dnsAddress == "" {
		return nil
	}
	if f.DNSAddress, err = dns.ParseServer(f.dnsAddress); err != nil {
		return usagef("--dns: %w", err)
	}
	for _, u := range f.dnsUpstreams {
		server, err := dns.ParseServer(u)
		if err != nil {
			return usagef("--dns-upstream: %w", err)
		}
		f.DNS.Upstreams = append(f.DNS.Upstreams, server)
	}
	return nil
}

// newDaemon returns the daemon that the flags of cmd ask for. complete has been
// called.
func (f *configFlags) newDaemon(cmd *cobra.Command) (*daemon.Daemon, error) {
	f.Settings = allFlags(cmd)
	f.AccessLog.Out = cmd.OutOrStdout()
	return daemon.New(f.Config)
}

// serve runs a daemon until a signal stops it. It gets hangup instead of SIGHUP, by which a terminal that
// is closed ends its programs; nil means that SIGHUP is ignored, as it is if whoever started usher ignores it.
func serve(cmd *cobra.Command, d *daemon.Daemon, hangup os.Signal) error {
	signals, hangups := make(chan os.Signal, 3), make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	defer signal.Stop(signals)
	switch {
	case hangup == nil:
		signal.Ignore(syscall.SIGHUP)
	case !signal.Ignored(syscall.SIGHUP):
		signal.Notify(hangups, syscall.SIGHUP)
		defer signal.Stop(hangups)
	}
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	go func() { // once: the kernel and a shell may both send it, and a second signal ends the draining
		select {
		case <-hangups:
			signals <- hangup
		case <-ctx.Done():
		}
	}()
	ignorePipes()
	return d.Run(ctx, signals)
}

// closedTerminal is the signal that the end of this process's terminal means: Ctrl-C if it has one.
func closedTerminal() os.Signal {
	for _, f := range []*os.File{os.Stdin, os.Stdout, os.Stderr} {
		if term.IsTerminal(int(f.Fd())) {
			return os.Interrupt
		}
	}
	return syscall.SIGTERM
}

// ignorePipes is for who prints what goes on: whoever reads it may go away (usher run
// --trace | head).
func ignorePipes() { signal.Ignore(syscall.SIGPIPE) }

// allFlags returns the flags of cmd and their values; of those that --help does not
// list, the ones that were given.
func allFlags(cmd *cobra.Command) map[string]string {
	out := map[string]string{}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden || f.Changed {
			out[f.Name] = f.Value.String()
		}
	})
	return out
}

// setDefault gives a flag another default.
func setDefault(flags *pflag.FlagSet, name, value string) {
	f := flags.Lookup(name)
	f.DefValue = value
	if err := f.Value.Set(value); err != nil {
		panic(err)
	}
}

// markFlag is the value of --mark. It is shown as rules show marks, in hexadecimal,
// and may be given as a decimal number too.
type markFlag uint32

func (m *markFlag) String() string { return fmt.Sprintf("%#x", uint32(*m)) }

func (m *markFlag) Set(s string) error {
	v, err := strconv.ParseUint(s, 0, 32)
	if err != nil {
		return errors.New("it must be a number of 32 bits, such as 0x1000 or 4096")
	}
	*m = markFlag(v)
	return nil
}

func (m *markFlag) Type() string { return "bits" }

// clientAddressFlag is the value of --client-address: whether it is the node's.
type clientAddressFlag bool

func (c *clientAddressFlag) String() string {
	if *c {
		return daemon.ClientAddresses[1]
	}
	return daemon.ClientAddresses[0]
}

func (c *clientAddressFlag) Set(s string) error {
	if !slices.Contains(daemon.ClientAddresses, s) {
		return errors.New("it must be " + strings.Join(daemon.ClientAddresses, " or "))
	}
	*c = s == daemon.ClientAddresses[1]
	return nil
}

func (c *clientAddressFlag) Type() string { return strings.Join(daemon.ClientAddresses, "|") }

// aliasesFlag is the value of --client-aliases.
type aliasesFlag []netip.Prefix

func (a *aliasesFlag) String() string {
	var words []string
	for _, p := range *a {
		words = append(words, p.String())
	}
	return strings.Join(words, ",")
}

func (a *aliasesFlag) Set(s string) error {
	var networks []netip.Prefix
	for word := range strings.SplitSeq(s, ",") {
		if word == "" && s == "" {
			break
		}
		p, err := netip.ParsePrefix(word)
		if err != nil || p != p.Masked() || slices.ContainsFunc(networks, func(o netip.Prefix) bool { return o.Addr().Is4() == p.Addr().Is4() }) {
			return errors.New("it must be at most one network of each IP family, such as 198.18.0.0/15,fd75:7368:6572:8000::/49")
		}
		networks = append(networks, p)
	}
	*a = networks
	return nil
}

func (a *aliasesFlag) Type() string { return "networks" }

// parsePortRange parses the value of --proxy-port-range; "" is any port.
func parsePortRange(s string) (ports portal.PortRange, err error) {
	if s != "" {
		ports.First, ports.Last, err = parsePorts("--proxy-port-range", s)
	}
	return ports, err
}

// parseNodePortAddresses parses the value of --nodeport-addresses: the keywords of kube-proxy's
// nodePortAddresses (KubeProxyConfiguration, since Kubernetes 1.37) and networks, in any mix.
func parseNodePortAddresses(list []string, nodeIP netip.Addr) (n daemon.NodePorts, err error) {
	var networks []string
	for _, s := range list {
		switch s {
		case "primary":
			n.Primary, n.NodeIP = true, nodeIP
		case "localhost":
			networks = append(networks, "127.0.0.0/8", "::1/128")
		case "all":
			networks = append(networks, "0.0.0.0/0", "::/0")
		default:
			networks = append(networks, s)
		}
	}
	n.Networks, err = parseCIDRs(networks, `--nodeport-addresses: %q is neither a CIDR such as 192.0.2.0/24 nor one of the words primary, localhost and all`)
	return n, err
}

const loadBalancersUsage = "`networks` from which AWS's load balancers connect: of those a PROXY protocol header is believed where a Service's annotation " + translate.AnnotationAWSProxyProtocol + " says that they send one; and endpoints see the clients behind load balancers by their own addresses only behind these"

// parseLoadBalancers parses the value of --load-balancer-cidr.
func parseLoadBalancers(list []string) ([]netip.Prefix, error) {
	return parseCIDRs(list, "--load-balancer-cidr: %q is not a CIDR such as 10.0.0.0/16")
}

// parseCIDRs parses networks. wrong is the format of the error for what is none.
func parseCIDRs(list []string, wrong string) (out []netip.Prefix, err error) {
	for _, s := range list {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, usagef(wrong, s)
		}
		out = append(out, p)
	}
	return out, nil
}
