package serve

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

	"github.com/usherproxy/usher/cmd/internal/cli"
	"github.com/usherproxy/usher/cmd/usher/daemon"
	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/manifest"
	"github.com/usherproxy/usher/config/translate"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/modes"
	"github.com/usherproxy/usher/proxy/accesslog"
)

// Flags are the flags from which a daemon's Config is made. Most are fields of
// it; what has to be parsed is in it when Complete has been called. Each command
// registers the groups that it has, and the rest is as Defaults says.
type Flags struct {
	daemon.Config

	allocation        Allocation
	clusterCIDRs      []string
	loadBalancers     []string
	nodePortAddresses []string
	NodeIP            netip.Addr // from kube-proxy's configuration only
	proxyPorts        string
	forbidden         []string
	clientAddress     bool // Services may have the annotation usher.io/client-address
	Trace             bool // print each step
	Logs              cli.LogFlags
}

// New returns flags with the defaults of a daemon.
func New() Flags {
	f := Flags{Config: daemon.Defaults(), clientAddress: true}
	f.Version = cli.Version
	return f
}

// RegisterSource registers where Services come from: files, or an API server.
func (f *Flags) RegisterSource(flags *pflag.FlagSet) {
	flags.StringArrayVar(&f.Manifests, "manifests", nil, "`path` of a file or folder with manifests (YAML or JSON): Service, EndpointSlice, Endpoints, Node, ServiceCIDR, List; - is standard input, read once; may be repeated")
	f.allocation.Register(flags)
	flags.StringVar(&f.Cluster.Kubeconfig, "kubeconfig", "", "`file` that says how to reach the API server")
	flags.StringVar(&f.Cluster.Context, "context", "", "context of the kubeconfig; empty means its current one")
	flags.StringVar(&f.Cluster.Server, "server", "", "`URL` of the API server, instead of the kubeconfig's or the Pod's")
}

// RegisterNode registers which node this is, and what of the Services is served on it.
func (f *Flags) RegisterNode(flags *pflag.FlagSet) {
	flags.StringVar(&f.NodeName, "node-name", "", "name of this node's Node object; empty means this machine's name")
	flags.StringToStringVar(&f.NodeLabels, "node-labels", nil, "`labels` of this node, such as topology.kubernetes.io/zone=a, whatever its Node object says; topology keys and hints ask for them")
	flags.StringVar(&f.ServiceProxyName, "service-proxy-name", "", "serve only Services whose label service.kubernetes.io/service-proxy-name has this value; empty means those without the label")
	flags.StringSliceVar(&f.nodePortAddresses, "nodeport-addresses", nil, "`networks` of the node addresses on which node ports are served, or the words primary (the addresses in the Node object; without one, those from which the node reaches other networks), localhost and all, in any mix; empty means all addresses, loopback included")
	flags.BoolVar(&f.Proxy.ClaimNodeAddresses, "claim-node-addresses", false, "let a Service whose external or load balancer IP is an address of this node have the port of another Service's node port or of a process that listens there, with the portals iptables and nftables")
	flags.StringSliceVar(&f.clusterCIDRs, "cluster-cidr", nil, "`networks` of the cluster's Pods, besides those that the Node object names: policies for clients from outside do not apply to Pods")
	flags.StringSliceVar(&f.loadBalancers, "load-balancer-cidr", nil, LoadBalancersUsage)
	flags.StringSliceVar(&f.forbidden, "forbidden-endpoint-cidrs", []string{metadata}, "`networks` in which no endpoint may be, since usher's connections start on the node, where no policy for Pods filters them; the word metadata stands for metadata services of clouds; empty means none; the default is for Services of an API server only")
	flags.BoolVar(&f.clientAddress, "client-address-annotation", true, "let Services have the annotation usher.io/client-address; without it, only --client-address says whom endpoints see")
	flags.DurationVar(&f.MaxDelay, "max-sync-delay", f.MaxDelay, "how long changes may be gathered, while Services change all the time, before they are carried out")
}

// metadata is the word for metadataServices in --forbidden-endpoint-cidrs.
const metadata = "metadata"

// metadataServices are the metadata services of Azure, Alibaba Cloud, Oracle Cloud, AWS and Google
// Cloud that are not at link-local addresses, which no endpoint may have anyway.
var metadataServices = []string{"168.63.129.16/32", "100.100.100.200/32", "192.0.0.192/32", "fd00:ec2::254/128", "fd20:ce::254/128"}

// RegisterTakeOver registers whether an usher that serves already is replaced.
func (f *Flags) RegisterTakeOver(flags *pflag.FlagSet) {
	flags.BoolVar(&f.TakeOver, "take-over", false, "if an usher serves this node already, take over from it without a gap; that one ends when its connections have")
}

// RegisterTrace registers whether steps are printed.
func (f *Flags) RegisterTrace(flags *pflag.FlagSet, to string) {
	flags.BoolVar(&f.Trace, "trace", false, "print each step of each connection to standard "+to)
}

// RegisterProxy registers how connections are served, wherever Services come from.
func (f *Flags) RegisterProxy(flags *pflag.FlagSet) {
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
	cli.Group(flags, EndpointGroup)
	flags.DurationVar(&o.HalfClosed, "half-closed-timeout", o.HalfClosed, "how long a connection lasts that one side has closed and in which nothing moves; 0 means forever")
	flags.DurationVar(&o.IdleTimeout, "connection-idle-timeout", o.IdleTimeout, "how long a connection lasts in which nothing moves; 0 means forever; a Service may set its own by the annotation usher.io/connection-idle-timeout")
	flags.DurationVar(&o.MaxAge, "max-connection-age", o.MaxAge, "how long a connection lasts at the most, less up to a tenth, so that not all end at once; 0 means forever; a Service may set its own by the annotation usher.io/max-connection-age")
	flags.DurationVar(&o.EndpointDrainTimeout, "endpoint-drain-timeout", o.EndpointDrainTimeout, "how long a connection lasts after its endpoint left the Service or began to terminate; it ends in a silent moment, or after another eighth of that time; 0 means as long as client and endpoint like; a Service may set its own by the annotation usher.io/drain-timeout")
	flags.DurationVar(&o.Keepalive, "keepalive", o.Keepalive, "how long a connection is silent before the peers are probed (TCP keepalive, on both sides)")
	cli.Group(flags, "Timeouts")
	flags.Int64Var(&o.MaxConnections, "max-connections", 0, "connections that may be open at once; 0 means as many as open files allow, which is a little under half their limit")
	flags.Int64Var(&o.MaxConnectionsPerPort, "max-connections-per-port", 0, "connections that one service port may have open at once; 0 means half of all when there is little room left")
	flags.Int64Var(&o.MaxClientShare, "max-client-share", o.MaxClientShare, "percent of the connections, and of the UDP sessions, that one client address may have open when there is little room left (the last eighth); 100 means as many as there are")
	flags.DurationVar(&o.UDPIdleTimeout, "udp-idle-timeout", o.UDPIdleTimeout, "how long a UDP session lasts without a datagram once an endpoint has answered; before, it is 1m at most; a Service may set its own, for both, by the annotation usher.io/udp-idle-timeout")
	flags.Int64Var(&o.MaxUDPSessions, "max-udp-sessions", o.MaxUDPSessions, "UDP sessions that may be open at once, a quarter of the open files limit at the most; beyond it the one that has been idle longest ends")
	flags.Int64Var(&o.MaxUDPSessionsPerPort, "max-udp-sessions-per-port", 0, "UDP sessions that one service port may have open at once; 0 means half of all")
	flags.Int64Var(&o.AffinityPerPort, "max-affinity-per-port", o.AffinityPerPort, "clients that are remembered for one service port with ClientIP affinity")
	flags.Int64Var(&o.AffinityTotal, "max-affinity", o.AffinityTotal, "clients that are remembered for all service ports with ClientIP affinity")
	flags.IntVar(&f.TraceEvents, "trace-events", f.TraceEvents, "steps of connections that are kept in memory")
	flags.IntVar(&f.TraceConnections, "trace-connections", f.TraceConnections, "connections that are kept besides when they have ended, of those that failed, were retried or slow, or got no response; 0 is none")
	flags.DurationVar(&f.Slow, "slow-threshold", f.Slow, "how long the client of a slow connection waits for the endpoint's first byte, or more; 0 means that none is slow")
	flags.DurationVar(&f.DrainTimeout, "drain-timeout", f.DrainTimeout, "how long connections may take to end when usher is stopped")
	cli.Group(flags, "Limits and retention")
}

const EndpointGroup = "Endpoints: which one gets a connection, and how"

// RegisterServers registers what else is served, and where.
func (f *Flags) RegisterServers(flags *pflag.FlagSet) {
	flags.StringVar(&f.AdminAddress, "admin-address", cli.DefaultAdminAddress, "`host:port` for the dashboard, /api, /metrics, /proxyMode, /configz; empty means none")
	flags.StringVar(&f.HealthzAddress, "healthz-address", "0.0.0.0:10256", "`host:port` for /healthz and /livez; empty means none, which is the default with --manifests")
	flags.BoolVar(&f.HardFail, "bind-address-hard-fail", false, "end if one of these addresses cannot be had, instead of going on without it")
	flags.StringVar(&f.AccessLog.Path, "access-log", "", "`file` to which a line is appended for each connection that has ended; - is standard output, empty means none")
	flags.BoolVar(&f.AccessLogDefault, "access-log-default", f.AccessLogDefault, "whether the access log has the connections of Services that do not say by the annotation usher.io/access-log")
	cli.Choice(flags, (*string)(&f.AccessLog.Format), "access-log-format", "", "how these lines are written: "+strings.Join(accesslog.Formats, " or "), accesslog.Formats...)
	cli.Group(flags, "Addresses that usher serves, and the access log")
}

// FromFiles reports whether Services come from files.
func (f *Flags) FromFiles() bool { return len(f.Manifests) > 0 }

// OneSource returns an error if the flags name two sources.
func (f *Flags) OneSource() error {
	if f.FromFiles() && (f.Cluster.Kubeconfig != "" || f.Cluster.Context != "" || f.Cluster.Server != "") {
		return cli.Usagef("--manifests says that Services come from files; --kubeconfig, --context and --server, from an API server; there is one source")
	}
	return nil
}

// Complete parses what has to be parsed, checks all, and makes the logger.
func (f *Flags) Complete(cmd *cobra.Command) (err error) {
	var given manifest.Options
	if err := f.allocation.Parse(&given); err != nil {
		return err
	}
	f.ServiceCIDRs, f.ServiceNodePorts, f.LoadBalancerCIDRs = given.ServiceCIDRs, given.NodePorts, given.LoadBalancerCIDRs
	if f.PodNetworks, err = ParseCIDRs(f.clusterCIDRs, "--cluster-cidr: %q is not a CIDR such as 10.244.0.0/16"); err != nil {
		return err
	}
	if f.LoadBalancers, err = ParseLoadBalancers(f.loadBalancers); err != nil {
		return err
	}
	if f.NodePorts, err = parseNodePortAddresses(f.nodePortAddresses, f.NodeIP); err != nil {
		return err
	}
	if err := f.parseForbidden(cmd.Flags()); err != nil {
		return err
	}
	f.NoClientAddress = !f.clientAddress
	if f.Portal.ProxyPorts, err = parsePortRange(f.proxyPorts); err != nil {
		return err
	}
	if err := f.Check(); err != nil {
		return cli.Usage(err)
	}
	log, err := f.Logs.Logger(cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	LogKlog(log)
	f.Log = log
	return nil
}

// parseForbidden parses --forbidden-endpoint-cidrs, whose default is for Services of an API server only.
func (f *Flags) parseForbidden(flags *pflag.FlagSet) (err error) {
	if f.FromFiles() && !flags.Changed("forbidden-endpoint-cidrs") {
		return nil
	}
	networks := f.forbidden
	if i := slices.Index(networks, metadata); i >= 0 {
		networks = slices.Concat(networks[:i], metadataServices, networks[i+1:])
	}
	f.ForbiddenEndpoints, err = ParseCIDRs(networks, "--forbidden-endpoint-cidrs: %q is neither a CIDR such as 192.0.2.0/24 nor the word metadata")
	return err
}

// NewDaemon returns the daemon that the flags of cmd ask for. Complete has been
// called.
func (f *Flags) NewDaemon(cmd *cobra.Command) (*daemon.Daemon, error) {
	f.Settings = AllFlags(cmd)
	f.AccessLog.Out = cmd.OutOrStdout()
	return daemon.New(f.Config)
}

// Run runs a daemon until a signal stops it. It gets hangup instead of SIGHUP, by which a terminal that
// is closed ends its programs; nil means that SIGHUP is ignored, as it is if whoever started usher ignores it.
func Run(cmd *cobra.Command, d *daemon.Daemon, hangup os.Signal) error {
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
	IgnorePipes()
	return d.Run(ctx, signals)
}

// ClosedTerminal is the signal that the end of this process's terminal means: Ctrl-C if it has one.
func ClosedTerminal() os.Signal {
	for _, f := range []*os.File{os.Stdin, os.Stdout, os.Stderr} {
		if term.IsTerminal(int(f.Fd())) {
			return os.Interrupt
		}
	}
	return syscall.SIGTERM
}

// IgnorePipes is for who prints what goes on: whoever reads it may go away (usher run
// --trace | head).
func IgnorePipes() { signal.Ignore(syscall.SIGPIPE) }

// AllFlags returns the flags of cmd and their values; of those that --help does not
// list, the ones that were given.
func AllFlags(cmd *cobra.Command) map[string]string {
	out := map[string]string{}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden || f.Changed {
			out[f.Name] = f.Value.String()
		}
	})
	return out
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
// NodePortAddresses (KubeProxyConfiguration, since Kubernetes 1.37) and networks, in any mix.
func parseNodePortAddresses(list []string, NodeIP netip.Addr) (n daemon.NodePorts, err error) {
	var networks []string
	for _, s := range list {
		switch s {
		case "primary":
			n.Primary, n.NodeIP = true, NodeIP
		case "localhost":
			networks = append(networks, "127.0.0.0/8", "::1/128")
		case "all":
			networks = append(networks, "0.0.0.0/0", "::/0")
		default:
			networks = append(networks, s)
		}
	}
	n.Networks, err = ParseCIDRs(networks, `--nodeport-addresses: %q is neither a CIDR such as 192.0.2.0/24 nor one of the words primary, localhost and all`)
	return n, err
}

const LoadBalancersUsage = "`networks` from which AWS's load balancers connect: of those a PROXY protocol header is believed where a Service's annotation " + translate.AnnotationAWSProxyProtocol + " says that they send one; and endpoints see the clients behind load balancers by their own addresses only behind these"

// ParseLoadBalancers parses the value of --load-balancer-cidr.
func ParseLoadBalancers(list []string) ([]netip.Prefix, error) {
	return ParseCIDRs(list, "--load-balancer-cidr: %q is not a CIDR such as 10.0.0.0/16")
}

// ParseCIDRs parses networks. wrong is the format of the error for what is none.
func ParseCIDRs(list []string, wrong string) (out []netip.Prefix, err error) {
	for _, s := range list {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, cli.Usagef(wrong, s)
		}
		out = append(out, p)
	}
	return out, nil
}
