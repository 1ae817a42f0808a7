package daemon

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
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

// Config configures the daemon. [Defaults] returns one to start from; only Log is required.
//
// Errors and log lines name a setting by its flag of 'usher run', because users set it there.
type Config struct {
	// Version is usher's version, shown by the API and metrics and sent to the API server as user agent.
	Version string
	Log     logrus.FieldLogger

	// Manifests are the files and folders that Services are read from. If empty, Services come from the API server of
	// Cluster. manifest.Stdin stands for Input, or standard input if Input is nil.
	Manifests []string
	Input     io.Reader
	// ServiceCIDRs are the networks from which Services of Manifests get cluster IPs that they do not set. At most one
	// network per IP family; empty means manifest.DefaultServiceCIDR.
	ServiceCIDRs []netip.Prefix
	// ServiceNodePorts and LoadBalancerCIDRs are the pools from which Services of Manifests get node ports and load
	// balancer IPs: see manifest.Options.
	ServiceNodePorts  manifest.Ports
	LoadBalancerCIDRs []netip.Prefix
	Cluster           kube.Connection
	// Tunnel connects to endpoints whose addresses this machine cannot route to, for example through Cluster's API
	// server; nil means direct connections.
	Tunnel *Tunnel
	// Options apply to every Service. usher trusts the PROXY protocol headers of LoadBalancers for Services with
	// translate.AnnotationAWSProxyProtocol. NoAccessLog and NodeAddress follow from AccessLog and Portal, and the
	// sources set other fields.
	translate.Options
	// MaxDelay limits how long changes from the API server are batched; 0 means kube.DefaultMaxDelay. Resync is the
	// interval of full recomputation; 0 means never.
	MaxDelay, Resync time.Duration

	// NodeName is the name of this node's Node object, "" without one.
	NodeName string
	// NodeLabels override the labels in this node's Node object. Topology
	// keys and EndpointSlice hints use them to find near endpoints.
	NodeLabels map[string]string
	// PodNetworks are networks of the cluster's Pods, in addition to those in the Node object.
	PodNetworks []netip.Prefix
	NodePorts   NodePorts
	Conntrack   Conntrack

	// Mode is the portal's mode, one of modes.Names. The daemon sets Log, NodePortAddresses and OtherProxies of Portal.
	Mode   string
	Portal portal.Options
	// TakeOver makes the daemon replace an usher process that already serves this node. Otherwise, such a process
	// causes an error, except in a demo of mode auto.
	TakeOver bool
	// Manager is the keeper or service manager that started this process. It keeps the sockets for the next process;
	// nil means none.
	Manager *fdstore.Manager
	// Netns is the network namespace in which a command runs; the daemon's caller closes it. VIPs are then addresses in
	// the namespace, and usher answers DNS queries there. Mode, Portal and TakeOver have no effect, and the cluster
	// gets no Events about ports that are not served. nil means the namespace of this process.
	Netns Netns
	// Demo, if not nil, makes this a demo: it returns a handler that extends the one at AdminAddress. A demo has no
	// successor: its rules are removed however it ends. A demo does not disturb a running usher process: in mode auto
	// it then uses no portal.
	Demo func(http.Handler) http.Handler

	// Proxy configures how connections are served. The daemon sets Portal, Trace, Log, IsPod, Socket, Store, OnProblem,
	// OnSync, and all fields that follow from other fields of Config, such as Ports (Portal.ProxyPorts).
	Proxy proxy.Options
	// TraceEvents is the number of connection steps that are kept in memory.
	TraceEvents int
	// Slow is the threshold for slow connections: those whose clients wait longer. 0 = none.
	Slow time.Duration
	// AccessLog configures the log with a line for each connection that has ended; without Path
	// there is none. The daemon sets Log.
	AccessLog accesslog.Options
	// DrainTimeout is the time for connections to end when the daemon is stopped; 0 resets them at once.
	DrainTimeout time.Duration
	// RemoveRules makes every signal remove the portal's rules. Redirects are removed before the listeners close, so
	// that another service proxy on the node can take over.
	RemoveRules bool

	// AdminAddress and HealthzAddress are HOST:PORT of the HTTP servers; "" means none. The daemon retries an
	// unavailable address until it is free. With HardFail, an unavailable address is an error, unless TakeOver is set.
	AdminAddress, HealthzAddress string
	HardFail                     bool
	// Settings are the values that /configz returns.
	Settings map[string]string
	// SOCKS is a SOCKS proxy, and Names a DNS server for the names of Services; nil means none.
	SOCKS Server
	Names Names

	// OnReady, if not nil, is called once, when the initial Services are served. No Service changes before it returns.
	OnReady func(Ready)
	// OnTrace, if not nil, is called in a dedicated goroutine with the steps of all
	// connections. ctx ends after the last connection.
	OnTrace func(ctx context.Context, steps *trace.Reader)
}

// Ready describes a daemon that has begun to serve.
type Ready struct {
	Proxy    *proxy.Proxy
	Services []config.Service
	// AdminAddress is the address of the API, with the port that was chosen; "" if the API is not served.
	AdminAddress string
}

// Tunnel reaches endpoints whose addresses are not routable from here.
type Tunnel struct {
	// Name is the tunnel's name in the API.
	Name string
	// Open makes o dial endpoints through the API server of rest. o.DirectDial still dials them directly. close ends
	// the connections.
	Open func(rest *rest.Config, o *proxy.Options, log logrus.FieldLogger) (close func(), err error)
}

// Netns is the network namespace of a command, as created by portal/netns.
type Netns interface {
	// Portal returns a portal that adds VIPs as addresses in the namespace.
	Portal() portal.Portal
	// Socket calls socket(2) in the namespace.
	Socket(domain, kind, protocol int) (fd int, err error)
}

// Server is a server that runs alongside the proxy.
type Server interface {
	// Start listens, and serves clients until ctx ends. With takeOver it retries an address that the previous usher
	// process still uses, until the address is free.
	Start(ctx context.Context, p *proxy.Proxy, takeOver bool, log logrus.FieldLogger) error
	// Close ends open connections, and returns when all have ended.
	Close()
}

// Names is a Server that resolves the names of Services.
type Names interface {
	Server
	// Apply sets the Services that are served now, as a source reports them.
	Apply([]config.Service)
	// Queries returns the number of answered queries, by type and code.
	Queries() map[[2]string]int64
}

// SCTPModes are the values of Config.Proxy.SCTP.
var SCTPModes = []string{string(stream.SCTPAuto), string(stream.SCTPOn), string(stream.SCTPOff)}

// Defaults returns the configuration of 'usher run' without flags, except for its HTTP servers and Portal.Aliases.
func Defaults() Config {
	return Config{
		Options:      translate.Options{Policy: config.DefaultPolicy()},
		MaxDelay:     kube.DefaultMaxDelay,
		Mode:         modes.Auto,
		Portal:       portal.Options{Mark: 0x1000, IPTablesTarget: portal.IPTablesTargets[0]},
		Proxy:        proxy.Defaults(),
		TraceEvents:  4096,
		Slow:         200 * time.Millisecond,
		AccessLog:    accesslog.Options{Format: accesslog.JSON},
		DrainTimeout: 30 * time.Second,
	}
}

// Check returns an error that names the first invalid setting.
func (c *Config) Check() error {
	if len(c.Proxy.Schedule) == 0 {
		return fmt.Errorf("--dial-timeouts: at least one duration is required")
	}
	for _, d := range c.Proxy.Schedule {
		if d <= 0 {
			return fmt.Errorf("--dial-timeouts: invalid value \"%s\": must be greater than 0", d)
		}
	}
	return cmp.Or(c.checkNumbers(), c.Policy.CheckFlags(), checkAddress("admin-address", c.AdminAddress), checkAddress("healthz-address", c.HealthzAddress))
}

// maxCount is the upper bound of counts, and far above the needs of any node. maxKept is the upper bound of counts
// for which memory is allocated at startup.
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
		between("keepalive", o.Keepalive, time.Second, maxKeepalive),
		atLeast("drain-timeout", c.DrainTimeout, 0),
		between("max-connections", o.MaxConnections, 0, maxCount),
		between("max-udp-sessions", o.MaxUDPSessions, 1, maxCount),
		between("max-affinity", o.AffinityTotal, 1, maxCount),
		between("trace-events", c.TraceEvents, 1, maxKept),
		atLeast("slow-threshold", c.Slow, 0),
	)
}

// maxKeepalive is the kernel's limit: MAX_TCP_KEEPIDLE in include/net/tcp.h.
const maxKeepalive = 32767 * time.Second

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

// checkAddress returns an error if address is no valid HOST:PORT.
func checkAddress(setting, address string) error {
	_, port, err := net.SplitHostPort(address)
	if _, badPort := strconv.ParseUint(port, 10, 16); address != "" && (err != nil || badPort != nil) {
		return fmt.Errorf("--%s: invalid value %q: must be HOST:PORT with a port from 0 to 65535, such as 127.0.0.1:10249", setting, address)
	}
	return nil
}
