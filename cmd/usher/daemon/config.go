package daemon

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/rest"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/kube"
	"github.com/usherproxy/usher/config/manifest"
	"github.com/usherproxy/usher/config/translate"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/fdstore"
	"github.com/usherproxy/usher/portal/modes"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/accesslog"
	"github.com/usherproxy/usher/proxy/stream"
	"github.com/usherproxy/usher/proxy/trace"
)

// Config says what a running usher is made of. [Defaults] returns one to begin with;
// Log has to be set, and is all that has to.
//
// Errors and log lines call a setting by the flag of 'usher run' for it, since that is
// what who reads them changes.
type Config struct {
	// Version is usher's, as the API, the metrics and the API server are told.
	Version string
	Log     logrus.FieldLogger

	// Manifests are files, and folders with files, that Services come from. Without
	// any they come from the API server that Cluster leads to. manifest.Stdin is Input, or
	// standard input if that is nil.
	Manifests []string
	Input     io.Reader
	// ServiceCIDRs are the networks from which a Service of Manifests gets a cluster IP
	// if it has none, at most one for each IP family; none means
	// manifest.DefaultServiceCIDR.
	ServiceCIDRs []netip.Prefix
	// ServiceNodePorts and LoadBalancerCIDRs are what else such a Service gets: see
	// manifest.Options.
	ServiceNodePorts  manifest.Ports
	LoadBalancerCIDRs []netip.Prefix
	Cluster           kube.Connection
	// Tunnel is the way to endpoints from where their addresses do not lead, such as through Cluster's API server; nil
	// is none.
	Tunnel *Tunnel
	// ServiceProxyName is usher's name among the proxies of the cluster: see
	// translate.Proxied. "" is none.
	ServiceProxyName string
	// ForbiddenEndpoints and NoClientAddress are what authors of Services may not have: see
	// translate.Options.
	ForbiddenEndpoints []netip.Prefix
	NoClientAddress    bool
	// LoadBalancers are the networks from which the load balancers connect that
	// translate.AnnotationAWSProxyProtocol is for.
	LoadBalancers []netip.Prefix
	// MaxDelay is how long an API server's changes may be gathered before they are carried
	// out; 0 means kube.DefaultMaxDelay. Resync is how often everything is computed anew;
	// 0 means never.
	MaxDelay, Resync time.Duration

	// NodeName is the name of this node's Node object; "" if there is none.
	NodeName string
	// NodeLabels are labels of this node, whatever its Node object says: by them topology
	// keys and the hints of EndpointSlices tell which endpoints are near.
	NodeLabels map[string]string
	// PodNetworks are networks of the cluster's Pods, besides those that the Node object
	// names.
	PodNetworks []netip.Prefix
	NodePorts   NodePorts
	Conntrack   Conntrack

	// Mode is the portal's, one of portal.Modes. Of Portal the daemon sets Log and
	// NodePortAddresses.
	Mode   string
	Portal portal.Options
	// TakeOver says to take over from an usher that serves this node already. Without it
	// that one is an error, but for a demo.
	TakeOver bool
	// Manager is who started this process, and keeps its sockets for the next one; nil is
	// nobody.
	Manager *fdstore.Manager
	// Netns is the network namespace of a command, which the command's owner closes.
	// VIPs are its addresses then and names are answered inside; Mode, Portal and TakeOver
	// mean nothing, nor does the cluster hear of what cannot be served. nil means this
	// process's namespace.
	Netns Netns
	// Demo is not nil for a demo.
	Demo *Demo

	// Proxy says how connections are served. The daemon sets Portal, Trace, Log, Ports
	// (to the portal's ProxyPorts), IsPod and what is told of problems.
	Proxy proxy.Options
	// TraceEvents is how many steps of connections are kept in memory.
	TraceEvents int
	// TraceConnections is how many connections that failed, were retried or slow are kept
	// besides, and Slow how long a client of a slow one waits; 0 is none.
	TraceConnections int
	Slow             time.Duration
	// AccessLog says where a line goes for each connection that has ended; without Path
	// there is none. The daemon sets Log.
	AccessLog accesslog.Options
	// AccessLogDefault says that the clients of Services that do not say are in the access log.
	AccessLogDefault bool
	// DrainTimeout is how long connections may take to end when the daemon is stopped; 0
	// breaks them at once.
	DrainTimeout time.Duration
	// RemoveRules says that any signal removes the portal's rules, and that those that
	// redirect go before listeners close, so that another service proxy that is there can take over.
	RemoveRules bool

	// AdminAddress and HealthzAddress are HOST:PORT of the HTTP servers; "" is none. One
	// that cannot be had is tried again all the time, unless HardFail says that this ends
	// the daemon.
	AdminAddress, HealthzAddress string
	HardFail                     bool
	// Settings are what /configz tells.
	Settings map[string]string
	// SOCKS is a proxy for programs that look for one, and Names answers for the names of Services; nil is none.
	SOCKS Server
	Names Names

	// OnReady, if not nil, is called once, when the Services that there are first are
	// served. None changes before it returns.
	OnReady func(Ready)
	// OnTrace, if not nil, is called in a goroutine of its own with the steps of all
	// connections. ctx ends when the last connection has.
	OnTrace func(ctx context.Context, steps *trace.Reader)
}

// Ready is what a daemon has when it begins to serve.
type Ready struct {
	Proxy    *proxy.Proxy
	Services []config.Service
	// AdminAddress is where the API is served, with the port that was chosen; "" if it
	// is not.
	AdminAddress string
}

// Demo is what is different with a demo. It has no successor: its rules go, whatever
// ended it. It leaves an usher that is there already alone: in mode auto it does
// without a portal then.
type Demo struct {
	// Handler returns a handler that adds to what is served at AdminAddress.
	Handler func(http.Handler) http.Handler
}

// Tunnel is a way to endpoints.
type Tunnel struct {
	// Name is what the API calls it.
	Name string
	// Open sets in o how endpoints are dialed through the API server of rest. o.DirectDial is the way that leads
	// past it. close ends the connections.
	Open func(rest *rest.Config, o *proxy.Options, log logrus.FieldLogger) (close func(), err error)
}

// Netns is the network namespace of a command, as portal/netns makes one.
type Netns interface {
	// Portal returns a portal for which VIPs are addresses inside.
	Portal() portal.Portal
	// Socket is socket(2) inside.
	Socket(domain, kind, protocol int) (fd int, err error)
}

// Server is a server beside the proxy.
type Server interface {
	// Start listens, and serves clients until ctx ends. With takeOver an address that is in use, by the usher from
	// which this one takes over, is tried until it is free.
	Start(ctx context.Context, p *proxy.Proxy, takeOver bool, log logrus.FieldLogger) error
	// Close ends the connections that are open, and returns when all have ended.
	Close()
}

// Names is a Server that answers for the names of Services.
type Names interface {
	Server
	// Apply notes Services that are served now, as a source reports them.
	Apply([]config.Service)
	// Queries returns how many queries were answered, by type and code.
	Queries() map[[2]string]int64
}

// SCTPModes are the values of Config.Proxy.SCTP.
var SCTPModes = []string{string(stream.SCTPAuto), string(stream.SCTPOn), string(stream.SCTPOff)}

// ClientAddresses are the values of --client-address.
var ClientAddresses = []string{"auto", "node"}

// DefaultAliases are where clients have their aliases. That of IPv4 is for benchmarks of
// routers (RFC 2544), and on no network else; that of IPv6 is in the unique local
// addresses of the landing.
var DefaultAliases = []netip.Prefix{netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("fd75:7368:6572:8000::/49")}

// Defaults returns what 'usher run' does without flags, but for its HTTP servers.
func Defaults() Config {
	return Config{
		MaxDelay:         kube.DefaultMaxDelay,
		Mode:             modes.Auto,
		Portal:           portal.Options{Mark: 0x1000, Aliases: slices.Clone(DefaultAliases), IPTablesTarget: portal.IPTablesTargets[0], AddressNamespace: portal.AddressNamespaces[0]},
		Proxy:            proxy.Defaults(),
		TraceEvents:      4096,
		TraceConnections: 4096,
		Slow:             200 * time.Millisecond,
		AccessLog:        accesslog.Options{Format: accesslog.JSON},
		AccessLogDefault: true,
		DrainTimeout:     30 * time.Second,
	}
}

// Check returns an error that names the setting that makes no sense.
func (c *Config) Check() error {
	if len(c.Proxy.Schedule) == 0 {
		return fmt.Errorf("--dial-timeouts: at least one duration is required")
	}
	for _, d := range c.Proxy.Schedule {
		if d <= 0 {
			return fmt.Errorf("--dial-timeouts: invalid value \"%s\": must be greater than 0", d)
		}
	}
	if err := c.checkNumbers(); err != nil {
		return err
	}
	if !slices.Contains(SCTPModes, string(c.Proxy.SCTP)) {
		return notOneOf("sctp", string(c.Proxy.SCTP), SCTPModes)
	}
	if len(modes.Named(c.Mode)) == 0 {
		return fmt.Errorf("--portal: invalid value %q: must be one of %s", c.Mode, strings.Join(modes.Names(), ", "))
	}
	if !slices.Contains(portal.IPTablesTargets, c.Portal.IPTablesTarget) {
		return fmt.Errorf("--iptables-target: invalid value %q: must be one of %s", c.Portal.IPTablesTarget, strings.Join(portal.IPTablesTargets, ", "))
	}
	if !slices.Contains(portal.AddressNamespaces, c.Portal.AddressNamespace) {
		return notOneOf("address-namespace", c.Portal.AddressNamespace, portal.AddressNamespaces)
	}
	if err := cmp.Or(checkAddress("admin-address", c.AdminAddress), checkAddress("healthz-address", c.HealthzAddress)); err != nil {
		return err
	}
	if !slices.Contains(accesslog.Formats, string(c.AccessLog.Format)) {
		return notOneOf("access-log-format", string(c.AccessLog.Format), accesslog.Formats)
	}
	return nil
}

// What is counted is bounded by more than a node can have; what room is made for at the
// start, by what memory has room for.
const (
	maxCount = 100_000_000
	maxKept  = 10_000_000
)

func (c *Config) checkNumbers() error {
	o := &c.Proxy
	if share := o.MaxClientShare; share < 1 || share > 100 {
		return fmt.Errorf("--max-client-share: invalid value \"%d\": must be from 1 to 100 (percent)", share)
	}
	return cmp.Or(
		atLeast("portal-check-interval", o.CheckInterval, 100*time.Millisecond),
		atLeast("quarantine", o.Quarantine.First, 0),
		atLeast("quarantine-max", o.Quarantine.Max, 0),
		between("probe-interval", o.Probe.Interval, translate.MinProbeInterval, translate.MaxProbeInterval),
		between("probe-timeout", o.Probe.Timeout, translate.MinProbeTimeout, translate.MaxProbeTimeout),
		between("probe-rise", o.Probe.Rise, 1, translate.MaxProbeCount),
		between("probe-fall", o.Probe.Fall, 1, translate.MaxProbeCount),
		atLeast("half-closed-timeout", o.HalfClosed, 0),
		atLeast("connection-idle-timeout", o.IdleTimeout, 0),
		atLeast("max-connection-age", o.MaxAge, 0),
		atLeast("endpoint-drain-timeout", o.EndpointDrainTimeout, 0),
		atLeast("slow-start", o.SlowStart, 0),
		atLeast("keepalive", o.Keepalive, time.Second),
		between("max-connections-per-endpoint", o.EndpointLimit, 0, config.MaxEndpointLimit),
		atLeast("queue-timeout", o.QueueTimeout, 100*time.Millisecond),
		atLeast("udp-idle-timeout", o.UDPIdleTimeout, 100*time.Millisecond),
		atLeast("drain-timeout", c.DrainTimeout, 0),
		between("max-connections", o.MaxConnections, 0, maxCount),
		between("max-connections-per-port", o.MaxConnectionsPerPort, 0, maxCount),
		between("max-udp-sessions", o.MaxUDPSessions, 1, maxCount),
		between("max-udp-sessions-per-port", o.MaxUDPSessionsPerPort, 0, maxCount),
		between("max-affinity-per-port", o.AffinityPerPort, 1, maxCount),
		between("max-affinity", o.AffinityTotal, 1, maxCount),
		between("trace-events", c.TraceEvents, 1, maxKept),
		between("trace-connections", c.TraceConnections, 0, maxKept),
		atLeast("slow-threshold", c.Slow, 0),
	)
}

func atLeast[T cmp.Ordered](setting string, value, least T) error {
	if value < least {
		return fmt.Errorf("--%s: invalid value \"%v\": must be at least %v", setting, value, least)
	}
	return nil
}

func between[T cmp.Ordered](setting string, value, least, most T) error {
	if value > most {
		return fmt.Errorf("--%s: invalid value \"%v\": must be at most %v", setting, value, most)
	}
	return atLeast(setting, value, least)
}

// checkAddress returns an error if a server cannot listen at the address.
func checkAddress(setting, address string) error {
	_, port, err := net.SplitHostPort(address)
	if _, badPort := strconv.ParseUint(port, 10, 16); address != "" && (err != nil || badPort != nil) {
		return fmt.Errorf("--%s: invalid value %q: must be HOST:PORT with a port from 0 to 65535, such as 127.0.0.1:10249", setting, address)
	}
	return nil
}

func notOneOf(setting, value string, all []string) error {
	return fmt.Errorf("--%s: invalid value %q: must be one of %s", setting, value, strings.Join(all, ", "))
}
