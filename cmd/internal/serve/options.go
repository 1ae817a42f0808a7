package serve

import (
	"context"
	"encoding"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

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

// Flags are the flags that configure a daemon. Most are fields of its Config; Complete parses the others into it. Each
// command registers the groups of flags that it supports; all other settings keep the values of Defaults.
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
	sourceAddress     string
	aliases           []string
	Trace             bool // print each step
	Logs              cli.LogFlags
}

// New returns flags with the defaults of a daemon.
func New() Flags {
	f := Flags{Config: daemon.Defaults(), clientAddress: true, sourceAddress: "auto", forbidden: []string{metadata}}
	f.Version = cli.Version
	return f
}

// RegisterSource registers the flags for the source of Services: files, or an API server.
func (f *Flags) RegisterSource(flags *pflag.FlagSet) {
	flags.StringArrayVar(&f.Manifests, "manifests", nil, "`path` of a manifest file or folder (YAML or JSON): Service, EndpointSlice, Endpoints, Node, ServiceCIDR, List. - = standard input, read once. May be repeated")
	f.allocation.Register(flags)
	flags.StringVar(&f.Cluster.Kubeconfig, "kubeconfig", "", "Kubeconfig `file` for the API server")
	flags.StringVar(&f.Cluster.Context, "context", "", "Context of the kubeconfig. Empty = the current context")
	flags.StringVar(&f.Cluster.Server, "server", "", "`URL` of the API server; overrides the kubeconfig and the Pod's environment")
}

// The usage of --service-proxy-name: its beginning, and its end for programs that run on a node.
const (
	ProxyNameUsage = "Serve only Services whose label service.kubernetes.io/service-proxy-name has this value. Empty = "
	Unlabeled      = "Services without the label"
)

// RegisterNode registers the flags for this node's identity, and for the Services that it serves.
func (f *Flags) RegisterNode(flags *pflag.FlagSet) {
	flags.StringVar(&f.NodeName, "node-name", "", "Name of this node's Node object. Empty = the hostname")
	flags.StringToStringVar(&f.NodeLabels, "node-labels", nil, "`labels` of this node for topology keys and hints, such as topology.kubernetes.io/zone=a; overrides the Node object")
	flags.StringVar(&f.ServiceProxyName, "service-proxy-name", "", ProxyNameUsage+Unlabeled)
	flags.StringSliceVar(&f.nodePortAddresses, "nodeport-addresses", nil, "`networks` of the node addresses that serve node ports, or primary (addresses in the Node object; without one, the node's default source addresses), localhost, all; separate several with commas. A family without a network is not restricted. Empty = all addresses, including loopback")
	flags.BoolVar(&f.Proxy.ClaimNodeAddresses, "claim-node-addresses", false, "Let an external or load balancer IP that is an address of this node take over a port that a node port or a local process uses there (portals iptables and nftables)")
	flags.StringSliceVar(&f.clusterCIDRs, "cluster-cidr", nil, "`networks` of the cluster's Pods, in addition to those in the Node object; policies for external clients do not apply to Pods")
	flags.StringSliceVar(&f.loadBalancers, "load-balancer-cidr", nil, LoadBalancersUsage)
	flags.StringSliceVar(&f.forbidden, "forbidden-endpoint-cidrs", []string{metadata}, "`networks` that endpoints must not be in: usher connects from the node, where Pod network policies do not apply. metadata = cloud metadata services. Empty = none. The default applies only to Services from an API server")
	flags.BoolVar(&f.clientAddress, "client-address-annotation", true, "Honor the annotation usher.io/client-address; if false, --client-address applies to all Services")
	flags.DurationVar(&f.MaxDelay, "max-sync-delay", f.MaxDelay, "Maximum time to batch changes before applying them while Services keep changing")
	cli.Deprecate(flags, "max-sync-delay", "set minSyncPeriod in kube-proxy's configuration (usher run --config)")
}

// metadata is the keyword for metadataServices in --forbidden-endpoint-cidrs.
const metadata = "metadata"

// metadataServices are the metadata services of Azure, Alibaba Cloud, Oracle Cloud, AWS and Google Cloud. Their
// link-local addresses are missing: endpoints may not have such addresses anyway.
var metadataServices = []string{"168.63.129.16/32", "100.100.100.200/32", "192.0.0.192/32", "fd00:ec2::254/128", "fd20:ce::254/128"}

// defaultAliases is the default of --client-aliases. The IPv4 network is reserved for benchmarks of routers (RFC 2544), so
// no other network should use it. The IPv6 network is part of the unique local prefix that also contains the redirect
// address.
var defaultAliases = []string{"198.18.0.0/15", "fd75:7368:6572:8000::/49"}

// RegisterTakeOver registers the flag to replace a running usher instance.
func (f *Flags) RegisterTakeOver(flags *pflag.FlagSet) {
	flags.BoolVar(&f.TakeOver, "take-over", false, "Replace the usher instance on this node without dropping connections; the old instance exits when its connections have closed")
}

// RegisterTrace registers the flag to print steps. to is the standard stream: output or error.
func (f *Flags) RegisterTrace(flags *pflag.FlagSet, to string) {
	flags.BoolVar(&f.Trace, "trace", false, "Print each step of each connection to standard "+to)
}

// RegisterProxy registers the flags for serving connections, whatever the source of Services.
func (f *Flags) RegisterProxy(flags *pflag.FlagSet) {
	o := &f.Proxy
	cli.Choice(flags, &f.Mode, "portal", "", "How VIP traffic reaches usher: "+strings.Join(modes.Names(), ", ")+". auto selects the first mode that works on this node", modes.Names()...)
	cli.Choice(flags, &f.Portal.IPTablesTarget, "iptables-target", "", "Target of the iptables portal's rules: "+strings.Join(portal.IPTablesTargets, ", ")+". dnat forwards to a dedicated address; redirect supports neither SCTP nor Pods behind interfaces without an IPv4 address", portal.IPTablesTargets...)
	flags.StringVar(&f.proxyPorts, "proxy-port-range", "", "Local port range `first-last` for listeners that are not on a VIP. Empty = any free port")
	flags.Var((*markFlag)(&f.Portal.Mark), "mark", "Packet mark (SO_MARK) of usher's connections to endpoints and the API server, which the iptables and nftables portals do not redirect. 0 = no mark")
	cli.Choice(flags, &f.sourceAddress, "client-address", "", "Source address that endpoints see. auto: the client's, if replies return through this node and the portal supports it (iptables, nftables), else the node's. node: always the node's. Per Service: usher.io/client-address", "auto", "node")
	flags.StringSliceVar(&f.aliases, "client-aliases", defaultAliases, "Unused `networks`, at most one per IP family, for clients on the same bridge as their endpoint; usher's packets with these addresses never leave the node")
	cli.Choice(flags, (*string)(&o.SCTP), "sctp", "", "Whether to serve SCTP Services: "+strings.Join(daemon.SCTPModes, ", ")+". auto: if the kernel's SCTP is already in use. on: load it, which stops userspace SCTP stacks on this node. off: never use it", daemon.SCTPModes...)
	flags.DurationVar(&o.CheckInterval, "portal-check-interval", o.CheckInterval, "Interval for verifying rules that the kernel sends no change events for, and for retrying service ports that failed")
	cli.Group(flags, "Portal: how clients reach usher")
	flags.DurationSliceVar(&o.Schedule, "dial-timeouts", o.Schedule, "`lengths` of the time slots in which usher searches for an endpoint. Each is also the timeout of the attempts that start in its slot")
	flags.DurationVar(&o.Quarantine.First, "quarantine", o.Quarantine.First, "Time to skip a failed endpoint before its first probe; doubles with every failed probe. 0 = no quarantine")
	flags.DurationVar(&o.Quarantine.Max, "quarantine-max", o.Quarantine.Max, "Maximum time between probes of a quarantined endpoint, and maximum quarantine of an endpoint that is not probed")
	f.registerSettings(flags, config.GroupEndpoints)
	cli.Group(flags, config.GroupEndpoints)
	flags.DurationVar(&o.Keepalive, "keepalive", o.Keepalive, "Idle time before the first TCP keepalive probe, to client and endpoint; at most 9h6m7s")
	f.registerSettings(flags, config.GroupTimeouts)
	cli.Group(flags, config.GroupTimeouts)
	flags.Int64Var(&o.MaxConnections, "max-connections", 0, "Maximum number of open connections. 0 = derived from the open-files limit: half of the files that listeners, event loops and UDP sessions leave")
	flags.Int64Var(&o.MaxClientShare, "max-client-share", o.MaxClientShare, "Percentage of connections, and of UDP sessions, that one client address may hold once 7/8 of the maximum are in use. 100 = no limit per client")
	flags.Int64Var(&o.MaxUDPSessions, "max-udp-sessions", o.MaxUDPSessions, "Maximum number of UDP sessions, at most a quarter of the open files that connections may use; above it, usher ends the session that has been idle longest")
	flags.Int64Var(&o.AffinityTotal, "max-affinity", o.AffinityTotal, "Maximum number of clients remembered for all service ports with ClientIP affinity")
	flags.IntVar(&f.TraceEvents, "trace-events", f.TraceEvents, "Number of connection steps kept in memory")
	flags.DurationVar(&f.Slow, "slow-threshold", f.Slow, "Connections that wait longer than this for the endpoint's first byte or, without one, for an endpoint count as slow. 0 = none")
	flags.DurationVar(&f.DrainTimeout, "drain-timeout", f.DrainTimeout, "Time for open connections to finish on shutdown; usher then resets them")
	f.registerSettings(flags, config.GroupLimits)
	cli.Group(flags, config.GroupLimits)
	cli.Retire(flags, "probes", true, "quarantined endpoints are always probed where that is possible")
	for _, name := range []string{"max-connections-per-port", "max-udp-sessions-per-port", "max-affinity-per-port"} {
		cli.Retire(flags, name, false, "the shares of service ports are fixed, see docs/sizing.md")
	}
	cli.Retire(flags, "address-namespace", false, "VIPs of the address portal are addresses of the node")
	cli.Retire(flags, "trace-connections", false, "4,096 connections are kept")
}

type textFlag interface {
	encoding.TextMarshaler
	encoding.TextUnmarshaler
}

// registerSettings registers the flags of a group that set the node's policy.
func (f *Flags) registerSettings(flags *pflag.FlagSet, group string) {
	for i := range config.Settings {
		s := &config.Settings[i]
		if s.Group != group {
			continue
		}
		name, usage := s.FlagName(), s.Usage+". Per Service: "+translate.AnnotationPrefix+s.Name
		switch v := s.At(&f.Policy).(type) {
		case *time.Duration:
			flags.DurationVar(v, name, *v, usage)
		case *int:
			flags.IntVar(v, name, *v, usage)
		case *bool:
			flags.BoolVar(v, name, *v, usage)
		case textFlag:
			flags.TextVar(v, name, v, usage)
		}
	}
}

// RegisterServers registers the flags for the API and health check servers, and for the access log.
func (f *Flags) RegisterServers(flags *pflag.FlagSet) {
	flags.StringVar(&f.AdminAddress, "admin-address", cli.DefaultAdminAddress, "Listen address `host:port` for the dashboard, /api, /metrics, /proxyMode and /configz. Empty = none")
	flags.StringVar(&f.HealthzAddress, "healthz-address", "0.0.0.0:10256", "Listen address `host:port` for /healthz and /livez. Empty = none, the default with --manifests")
	flags.BoolVar(&f.HardFail, "bind-address-hard-fail", false, "Exit if usher cannot listen on one of these addresses, instead of retrying in the background")
	flags.StringVar(&f.AccessLog.Path, "access-log", "", "`file` to append a line to for each closed connection. - = standard output, empty = none")
	cli.Choice(flags, (*string)(&f.AccessLog.Format), "access-log-format", "", "Format of the access log: "+strings.Join(accesslog.Formats, " or "), accesslog.Formats...)
	f.registerSettings(flags, config.GroupServers)
	cli.Group(flags, config.GroupServers)
	flags.Lookup("bind-address-hard-fail").Hidden = true // it is kube-proxy's
	cli.Deprecate(flags, "access-log-default", "use the annotation usher.io/access-log")
}

// FromFiles reports whether Services come from files.
func (f *Flags) FromFiles() bool { return len(f.Manifests) > 0 }

// OneSource returns an error if the flags set both sources of Services.
func (f *Flags) OneSource() error {
	if f.FromFiles() && (f.Cluster.Kubeconfig != "" || f.Cluster.Context != "" || f.Cluster.Server != "") {
		return cli.Usagef("--manifests cannot be combined with --kubeconfig, --context or --server: Services come either from files or from an API server")
	}
	return nil
}

// Complete parses and checks the flags, and creates the logger.
func (f *Flags) Complete(cmd *cobra.Command) (err error) {
	var given manifest.Options
	if err := f.allocation.Parse(&given); err != nil {
		return err
	}
	f.ServiceCIDRs, f.ServiceNodePorts, f.LoadBalancerCIDRs = given.ServiceCIDRs, given.NodePorts, given.LoadBalancerCIDRs
	if f.PodNetworks, err = ParseCIDRs(f.clusterCIDRs, "--cluster-cidr: invalid value %q: must be a CIDR such as 10.244.0.0/16"); err != nil {
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
	if f.Portal.Aliases, err = parseNetworks("--client-aliases", f.aliases, 0); err != nil {
		return err
	}
	f.NoClientAddress, f.Portal.NodeAddress = !f.clientAddress, f.sourceAddress == "node"
	if ports := &f.Portal.ProxyPorts; f.proxyPorts != "" {
		if ports.First, ports.Last, err = parsePorts("--proxy-port-range", f.proxyPorts); err != nil {
			return err
		}
	}
	if err := f.Check(); err != nil {
		return cli.Usage(err)
	}
	log := f.Logs.Logger(cmd.ErrOrStderr())
	LogKlog(log)
	f.Log = log
	return nil
}

// parseForbidden parses --forbidden-endpoint-cidrs, whose default applies only to Services from an API server.
func (f *Flags) parseForbidden(flags *pflag.FlagSet) (err error) {
	if f.FromFiles() && !flags.Changed("forbidden-endpoint-cidrs") {
		return nil
	}
	networks := f.forbidden
	if i := slices.Index(networks, metadata); i >= 0 {
		networks = slices.Concat(networks[:i], metadataServices, networks[i+1:])
	}
	f.ForbiddenEndpoints, err = ParseCIDRs(networks, "--forbidden-endpoint-cidrs: invalid value %q: must be a CIDR such as 192.0.2.0/24, or metadata")
	return err
}

// NewDaemon returns the daemon for the flags of cmd. Call Complete first.
func (f *Flags) NewDaemon(cmd *cobra.Command) (*daemon.Daemon, error) {
	f.Settings = AllFlags(cmd)
	f.AccessLog.Out = cmd.OutOrStdout()
	return daemon.New(f.Config)
}

// Run runs a daemon until a signal stops it. When its terminal closes, the process receives SIGHUP, and the daemon gets
// hangup instead. If hangup is nil, or the parent process ignored SIGHUP, SIGHUP is ignored.
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
	go func() { // once: the kernel and a shell may both send SIGHUP, and a second signal would end the draining
		select {
		case <-hangups:
			signals <- hangup
		case <-ctx.Done():
		}
	}()
	IgnorePipes()
	return d.Run(ctx, signals)
}

// ClosedTerminal returns the hangup signal for Run: SIGINT, as for Ctrl-C, if a standard stream is a terminal, else
// SIGTERM.
func ClosedTerminal() os.Signal {
	for _, f := range []*os.File{os.Stdin, os.Stdout, os.Stderr} {
		if term.IsTerminal(int(f.Fd())) {
			return os.Interrupt
		}
	}
	return syscall.SIGTERM
}

// IgnorePipes ignores SIGPIPE, for commands that print continuously: the reader of the output may exit (usher run
// --trace | head).
func IgnorePipes() { signal.Ignore(syscall.SIGPIPE) }

// AllFlags returns the flags of cmd and their values. It includes hidden flags only if they are set and have an effect.
func AllFlags(cmd *cobra.Command) map[string]string {
	out := map[string]string{}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden || f.Changed && !cli.Retired(f) {
			out[f.Name] = f.Value.String()
		}
	})
	return out
}

// markFlag is the value of --mark. It accepts decimal and hexadecimal numbers, and prints hexadecimal ones, as listings
// of rules do.
type markFlag uint32

func (m *markFlag) String() string { return fmt.Sprintf("%#x", uint32(*m)) }

func (m *markFlag) Set(s string) error {
	v, err := strconv.ParseUint(s, 0, 32)
	if err != nil {
		return errors.New("must be a 32-bit number such as 0x1000 or 4096")
	}
	if v == math.MaxUint32 {
		return errors.New("must leave a bit unset: usher marks answers with one more bit")
	}
	*m = markFlag(v)
	return nil
}

func (m *markFlag) Type() string { return "bits" }

// parseNodePortAddresses parses the value of --nodeport-addresses: the keywords of kube-proxy's
// NodePortAddresses (KubeProxyConfiguration, since Kubernetes 1.37) and networks, in any mix.
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
	n.Networks, err = ParseCIDRs(networks, `--nodeport-addresses: invalid value %q: must be a CIDR such as 192.0.2.0/24, or one of primary, localhost, all`)
	return n, err
}

// LoadBalancersUsage is the usage of --load-balancer-cidr.
const LoadBalancersUsage = "`networks` from which load balancers connect. usher accepts their PROXY protocol headers for Services with the annotation " + translate.AnnotationAWSProxyProtocol + ". Only from these networks, endpoints see the client in the header"

// ParseLoadBalancers parses the value of --load-balancer-cidr.
func ParseLoadBalancers(list []string) ([]netip.Prefix, error) {
	return ParseCIDRs(list, "--load-balancer-cidr: invalid value %q: must be a CIDR such as 10.0.0.0/16")
}

// ParseCIDRs parses networks. For an invalid one, it returns a usage error in the format wrong.
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

// Hostname returns this machine's name in the form that kubelet and kube-proxy use for the Node object.
func Hostname() (string, error) {
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("get hostname: %w; set --node-name", err)
	}
	return strings.ToLower(strings.TrimSpace(name)), nil
}
