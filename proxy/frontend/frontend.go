package frontend

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/time/rate"

	"github.com/usherproxy/usher/affinity"
	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/kernel"
	"github.com/usherproxy/usher/proxy/balance"
	"github.com/usherproxy/usher/proxy/budget"
	"github.com/usherproxy/usher/proxy/conn"
	"github.com/usherproxy/usher/proxy/forward"
	"github.com/usherproxy/usher/proxy/trace"
)

// Settings are common to all front ends. Portal, Trace and Log are required.
type Settings struct {
	Portal portal.Portal
	Trace  *trace.Log
	Log    logrus.FieldLogger

	// Slow is the wait above which a connection counts as slow: see conn.Record.Waited. 0 means that none is slow.
	Slow time.Duration

	// Schedule has the lengths of the time slots for attempts to connect (see search.Search); UDP has none.
	Schedule   []time.Duration
	Quarantine balance.Policy

	// Ports are the local ports for listeners that are not on a VIP; the zero value means any.
	Ports portal.PortRange
	// Socket creates the sockets of TCP and UDP listeners; nil means socket(2). If set, it must behave like socket(2),
	// but its sockets may be in another network namespace than this process; SCTP is then not served. Linux only.
	Socket func(domain, kind, protocol int) (fd int, err error)

	// NodeName is the name of this node, as in config.Endpoint.Node; "" if unknown.
	NodeName string
	// LoadBalancers are the networks of load balancers that the operator trusts: a client that they name in a PROXY
	// protocol header has its own quota. See Conn.QuotaAddr.
	LoadBalancers []netip.Prefix
	// NodeAddress makes all endpoints see the node's address instead of the client's.
	NodeAddress bool

	// IsPod, if not nil, reports whether a Pod of this node has the address. It is called only for addresses outside
	// the networks passed to Locality.SetPods. It is called concurrently, and must return quickly. The portal's
	// equivalent is portal.Options.PodInterfaces.
	IsPod func(netip.Addr) bool
}

// Node is the state that all front ends of this node share. The fields of Settings, Budget and Tunneled are set before
// the first front end is created, and not changed.
type Node struct {
	Settings
	Budget *budget.Budget
	// Tunneled means that connections to TCP endpoints are made elsewhere, as with a port-forward through the API
	// server, and not by this node's kernel.
	Tunneled bool

	Locality Locality
	Counters Counters

	// Targets is the set of the VIPs of all front ends; each key is a portal.Target. Any goroutine may read it.
	Targets sync.Map
	// Inherited has the sockets of a predecessor that are not used yet, by name. Only the goroutine that opens
	// listeners may use it.
	Inherited map[string]*os.File

	// LimitLog limits the rate of log messages about limits and lack of resources.
	LimitLog rate.Sometimes

	carriesVIPs     bool // portal.Traits.CarriesVIPs of Portal
	lastID          atomic.Uint64
	lastInheritedID atomic.Uint64 // the last client number reserved for a predecessor
	refusals        *rate.Limiter
}

// RefusalsPerSecond limits the entries in the trace and the access log for clients that are not admitted; for UDP, in
// each event loop.
const RefusalsPerSecond = 10

// Init prepares n for front ends.
func (n *Node) Init() {
	n.refusals = rate.NewLimiter(RefusalsPerSecond, RefusalsPerSecond)
	n.LimitLog = rate.Sometimes{First: 1, Interval: 10 * time.Second}
	n.Locality.current.Store(new(localAddrs))
	n.Locality.SetNodePorts(nil)
	n.Locality.isPod = n.IsPod
	if n.Portal != nil {
		n.carriesVIPs = n.Portal.Traits().CarriesVIPs()
	}
	n.Locality.Refresh()
}

// NewID returns a number for a new client. The first is 1, unless InheritIDs was called.
func (n *Node) NewID() uint64 { return n.lastID.Add(1) }

// Clients returns how many numbers NewID has returned.
func (n *Node) Clients() uint64 {
	return max(n.lastID.Load(), n.lastInheritedID.Load()) - n.lastInheritedID.Load()
}

// LastID returns the highest number used or reserved.
func (n *Node) LastID() uint64 { return n.lastID.Load() }

// idsOfPredecessor is how many client numbers are reserved for the clients that a predecessor accepts while it hands
// over. Even a very busy node needs some seconds to accept that many.
const idsOfPredecessor = 100_000

// InheritIDs reserves the numbers up to last, and idsOfPredecessor more, for the clients of a predecessor. Call it
// before the first client connects.
func (n *Node) InheritIDs(last uint64) {
	n.lastInheritedID.Store(max(n.lastInheritedID.Load(), last+idsOfPredecessor))
	n.lastID.Store(n.lastInheritedID.Load())
}

// InheritedID returns the number for a client that had number id in the predecessor: id itself if that is reserved,
// else a new number.
func (n *Node) InheritedID(id uint64) uint64 {
	if id > n.lastInheritedID.Load() {
		return n.NewID()
	}
	return id
}

// ErrLoop is the error if a connection to an endpoint would come back to usher.
var ErrLoop = errors.New("refused: the endpoint is a VIP, a node port of this node or usher's own address; connecting would loop")

// errMayLoop is the error if an SCTP association with an endpoint may come back through another node. For SCTP, usher
// sets no hop limit that would end the loop.
var errMayLoop = errors.New("refused: the endpoint is a VIP, or its port is a node port; connecting may loop through another node")

// CheckLoop returns an error if a connection to an endpoint would come back to usher or, for SCTP, may come back
// through another node. It returns none in three cases: packets for VIPs do not reach usher; the listeners are in
// another network namespace (Settings.Socket); or this node's kernel does not connect to the endpoints.
//
// If usher's packets have no mark, CheckLoop refuses an endpoint that is a VIP. Marked packets are not redirected, and
// may reach a process of this node that listens on the VIP. (Package translate refuses most endpoints that are VIPs.)
// mayLoop reports whether a connection may come back through another node: the endpoint is a VIP, or its port is a node
// port. See HopsLeft.
func (n *Node) CheckLoop(protocol config.Protocol, to netip.AddrPort) (mayLoop bool, err error) {
	if !n.carriesVIPs || n.Socket != nil || n.Tunneled {
		return false, nil
	}
	if kernel.IsRedirectAddr(to.Addr()) {
		return false, ErrLoop
	}
	t := portal.Target{Protocol: portalProtocols[protocol], Addr: to.Addr(), Port: to.Port()}
	_, vip := n.Targets.Load(t)
	if vip && n.Portal.Mark() == 0 {
		return false, ErrLoop
	}
	t.Addr = portal.FamilyOf(to.Addr()).Any()
	_, nodePort := n.Targets.Load(t)
	if nodePort && n.Locality.HasNodePorts(to.Addr()) {
		return false, ErrLoop
	}
	if mayLoop = vip || nodePort; mayLoop && protocol == config.SCTP {
		return false, errMayLoop
	}
	return mayLoop, nil
}

// A connection that may come back through another node has a hop limit below maxHops. It is refused if its hop limit
// would be below minHops.
const (
	maxHops = 64
	minHops = 8
)

// HopsLeft returns the hop limit for a TCP connection that may come back through another node. It is one less than that
// of the client's packets, as after a router, and less than maxHops. Without this limit, two nodes with Services whose
// endpoints are each other's node ports would connect endlessly. An error means that the connection must not be made.
func HopsLeft(clientHops int) (int, error) {
	if hops := min(clientHops, maxHops) - 1; hops >= minHops {
		return hops, nil
	}
	return 0, hopsUsedUp{}
}

// hopsUsedUp is the error if the client's hop limit is too low.
type hopsUsedUp struct{}

func (hopsUsedUp) Error() string {
	return "refused: the endpoint is a VIP, or its port is a node port, and the hop limit is exhausted: the connection loops between nodes"
}

// Futile makes the search give up: see search.Search.Failed. Another endpoint could succeed if it is not a VIP and its
// port not a node port, but few Services have endpoints of both kinds.
func (hopsUsedUp) Futile() bool { return true }

// Target returns vip as a portal.Target.
func Target(protocol config.Protocol, vip config.VIP) portal.Target {
	return portal.Target{Protocol: portalProtocols[protocol], Addr: vip.Addr, Port: vip.Port}
}

var portalProtocols = map[config.Protocol]portal.Protocol{
	config.TCP:  portal.TCP,
	config.UDP:  portal.UDP,
	config.SCTP: portal.SCTP,
}

// FrontEnd is one service port in one IP family.
type FrontEnd struct {
	*Node
	Protocol config.Protocol
	Affinity *affinity.Table
	Open     atomic.Int64 // connections
	Sessions atomic.Int64 // UDP sessions
	// SessionPorts counts UDP sessions whose source address the kernel selects: they use a port of this node.
	SessionPorts atomic.Int64

	view         atomic.Pointer[View]
	portCounters portCounters
	portMetrics  atomic.Pointer[PortMetrics]
}

// New returns a front end for port. Its View has no endpoints yet.
func New(node *Node, port config.ServicePort, table *affinity.Table) *FrontEnd {
	f := &FrontEnd{Node: node, Protocol: port.Protocol, Affinity: table}
	f.Swap(&View{Port: config.ServicePort{ID: port.ID}})
	return f
}

// View returns the current View.
func (f *FrontEnd) View() *View { return f.view.Load() }

// manyVIPs is the minimum number of VIPs for which a lookup in a map is faster than a search of the list. Most service
// ports have one VIP; a Service may list tens of thousands of external IPs.
const manyVIPs = 32

// Swap makes v the current View, and returns the old one. It closes the old View's Replaced. Searches that have begun
// use v from their next step on.
func (f *FrontEnd) Swap(v *View) (old *View) {
	v.Replaced = make(chan struct{})
	if all := v.Port.VIPs; len(all) >= manyVIPs {
		v.vips = make(map[netip.AddrPort]*config.VIP, len(all))
		for i := range slices.Backward(all) { // of equal ones, the first counts
			v.vips[all[i].AddrPort()] = &all[i]
		}
	}
	v.Clients = &conn.Port{ID: v.Port.ID, Protocol: f.Protocol, Unlogged: !v.Port.AccessLog, Slow: f.Slow, Observers: []conn.Observer{f.Trace, f}}
	if old = f.view.Swap(v); old != nil {
		close(old.Replaced)
	}
	return old
}

// ID returns the ID of the service port. It changes if the port is renamed.
func (f *FrontEnd) ID() config.PortID { return f.View().Port.ID }

// Origin returns the source of a connection to an endpoint of v for a client; from and to are the addresses of the
// client's connection. If from is the zero Addr, the result is for all clients: its SourceAddress is 0 if it depends on
// the client (see Portal.Origin).
func (f *FrontEnd) Origin(v *View, from, to netip.Addr, endpoint *config.Endpoint) portal.Origin {
	var why portal.SourceAddress
	switch {
	case f.NodeAddress || v.Port.NodeAddress:
		why = portal.SourceConfigured
	case f.Tunneled:
		why = portal.SourceTunnel
	case f.Protocol == config.SCTP:
		why = portal.SourceSCTP
	case from == to || f.Locality.IsNode(from):
		why = portal.SourceOwnProcess
	case from.IsValid() && (from.Is4() != endpoint.Addr.Addr().Is4() || !from.IsGlobalUnicast()):
		why = portal.SourceFamily
	case from == endpoint.Addr.Addr():
		why = portal.SourceItself
	default:
		where := portal.Unknown
		switch {
		case endpoint.Node == "" || f.NodeName == "":
		case endpoint.Node == f.NodeName:
			where = portal.Here
		default:
			where = portal.Elsewhere
		}
		return f.Portal.Origin(from, endpoint.Addr.Addr(), where)
	}
	return portal.Origin{SourceAddress: why}
}

// Policy returns the quarantine policy for a failed attempt from source o to endpoint. Its UntilProbe is set if usher's
// rechecks (see package health) can end a quarantine. Only TCP endpoints that the kernel connects to are rechecked. UDP
// has no handshake, a recheck costs an SCTP endpoint an association, and one through a port-forward loads the API
// server. A recheck comes from this node's address, and a NetworkPolicy may admit clients but not nodes. So a recheck
// proves nothing about an endpoint that is on another node and sees some clients' own addresses.
func (f *FrontEnd) Policy(o portal.Origin, endpoint *config.Endpoint) balance.Policy {
	p := f.Node.Quarantine
	p.UntilProbe = p.UntilProbe && f.Protocol == config.TCP && !f.Tunneled && (o.Here || o.SourceAddress != portal.SourceClient) && !f.seesClientsElsewhere(endpoint)
	return p
}

// seesClientsElsewhere reports whether an endpoint sees some clients' own addresses, and is on another node.
func (f *FrontEnd) seesClientsElsewhere(endpoint *config.Endpoint) bool {
	o := f.Origin(f.View(), netip.Addr{}, endpoint.Addr.Addr(), endpoint)
	return o.SourceAddress == 0 && !o.Here
}

// View is a front end's configuration and endpoints at one moment. It is never changed, only replaced.
type View struct {
	Port config.ServicePort
	All  []*balance.Endpoint // usable or not
	// The usable endpoints by kind of client; see config.ServicePort. Internal: for cluster IPs, by the internal
	// traffic policy. External: for other VIPs, by the external one. Cluster: for clients of this node that connect to
	// other VIPs; the policy Cluster always applies to them.
	Cluster, Internal, External *balance.Set

	Limits   *forward.Limits
	Replaced chan struct{} // closed when another view replaces this one

	Clients *conn.Port // shared by the Records of its clients

	vips map[netip.AddrPort]*config.VIP // those of Port if they are many, else nil: see VIPAt

	indexed sync.Once
	byState map[*balance.State]*balance.Endpoint // see Endpoint
}

// Endpoint returns the endpoint of All with state s, or nil if there is none. Its first call indexes All.
func (v *View) Endpoint(s *balance.State) *balance.Endpoint {
	v.indexed.Do(func() {
		v.byState = make(map[*balance.State]*balance.Endpoint, len(v.All))
		for _, e := range v.All {
			v.byState[e.State] = e
		}
	})
	return v.byState[s]
}

// Endpoints returns the endpoints for a client that connected to vip. nodeLocal is the result of Locality.OfThisNode.
func (v *View) Endpoints(vip *config.VIP, nodeLocal bool) *balance.Set {
	switch {
	case !vip.External():
		return v.Internal
	case nodeLocal:
		return v.Cluster
	}
	return v.External
}

// VIPAt returns the VIP with this address and port.
func (v *View) VIPAt(at netip.AddrPort) (*config.VIP, bool) {
	if v.vips != nil {
		vip, ok := v.vips[at]
		return vip, ok
	}
	for i := range v.Port.VIPs {
		if vip := &v.Port.VIPs[i]; vip.Port == at.Port() && vip.Addr == at.Addr() {
			return vip, true
		}
	}
	return nil, false
}

// VIPOf returns the VIP of a portal's target.
func (v *View) VIPOf(t portal.Target) (*config.VIP, bool) {
	return v.VIPAt(netip.AddrPortFrom(t.Addr, t.Port))
}

// vipFor returns the VIP for a client that connected to original: the VIP at that address, or a node port.
func (v *View) vipFor(original netip.AddrPort) (*config.VIP, bool) {
	if vip, ok := v.VIPAt(original); ok {
		return vip, true
	}
	return v.VIPAt(netip.AddrPortFrom(portal.FamilyOf(original.Addr()).Any(), original.Port()))
}

// Redirect returns the rule for t, which a listener on port serves. If t is external and only clients of this node have
// an endpoint, the action is Drop.
func (v *View) Redirect(t portal.Target, port uint16) portal.Rule {
	vip, _ := v.VIPOf(t)
	r := portal.Rule{Target: t, Action: portal.Redirect, LocalPort: port}
	if len(vip.Sources) > 0 {
		// If the VIP is an address of this node, the node's processes connect from that address. The listener decides
		// whether they are allowed: see Locality.Admits.
		itself := netip.PrefixFrom(vip.Addr, vip.Addr.BitLen())
		sources := append(slices.Clip(vip.Sources), itself)
		if vip.Balancers != nil { // these connect for clients, which the listener checks
			sources = append(sources, vip.Balancers.Networks...)
		}
		ofFamily, all := portal.SourcesOf(sources).In(portal.FamilyOf(t.Addr))
		if !all {
			// Omit networks of the other family: a rule in the kernel matches one family.
			r.Sources = portal.SourcesOf(ofFamily)
		}
	}
	if vip.External() && v.External.Len() == 0 {
		// For external clients; since LocalPort is set, clients of this node are still redirected (see portal.Drop).
		r.Action = v.Action(vip)
	}
	return r
}

// SameEmptySets reports whether each of Cluster, Internal and External is empty in both v and other, or in neither. If
// so, and only endpoints differ, Action and Redirect are the same for both.
func (v *View) SameEmptySets(other *View) bool {
	return (v.Cluster.Len() == 0) == (other.Cluster.Len() == 0) && (v.Internal.Len() == 0) == (other.Internal.Len() == 0) &&
		(v.External.Len() == 0) == (other.External.Len() == 0)
}

// Action returns the action for packets to vip.
func (v *View) Action(vip *config.VIP) portal.Action {
	return ActionFor(vip.External(), v.Internal.Len(), v.External.Len(), v.Cluster.Len())
}

// ActionFor returns the action for packets to a VIP with these numbers of endpoints per kind of client. The action is
// Drop if the policy is Local and only other nodes have endpoints. If the VIP is external, a rule with this action and
// a LocalPort still redirects clients of this node.
func ActionFor(external bool, internals, externals, all int) portal.Action {
	switch {
	case all == 0 && (external || internals == 0):
		return portal.Reject
	case external && externals == 0, !external && internals == 0:
		return portal.Drop
	}
	return portal.Redirect
}
