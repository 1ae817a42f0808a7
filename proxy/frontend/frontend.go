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

// Settings are what the user says of all front ends. Portal, Trace and Log are required.
type Settings struct {
	Portal portal.Portal
	Trace  *trace.Log
	Log    logrus.FieldLogger

	// Slow is how long a client may wait for the endpoint's first byte until its connection counts as slow;
	// 0 is for ever.
	Slow time.Duration

	// Schedule is how long each attempt to connect may take, but of UDP's; see
	// search.Search.
	Schedule   []time.Duration
	Quarantine balance.Policy

	// Ports are the local ports for listeners that are not on a VIP; none means
	// any.
	Ports portal.PortRange
	// Socket makes the sockets of TCP and UDP listeners; nil is socket(2). With
	// another one, which must do what that does, they may be in a network
	// namespace that this process is not in. Linux only; SCTP is not served then.
	Socket func(domain, kind, protocol int) (fd int, err error)

	// NodeName is what endpoints of this node have for their Node; "" if that is not known.
	NodeName string
	// LoadBalancers are the networks of load balancers that the user himself has named:
	// their clients' addresses are as good as if those had come directly.
	LoadBalancers []netip.Prefix
	// NodeAddress makes all endpoints see the node's address in place of their clients'.
	NodeAddress bool

	// IsPod, if not nil, reports whether the client at an address is a Pod of this node,
	// besides those of Locality.SetPods. It is asked for each client of a VIP that is
	// not a cluster IP, from many goroutines, and must return quickly. For the portal
	// see portal.Options.PodInterfaces.
	IsPod func(netip.Addr) bool
}

// Node is what all front ends of this node have in common. The exported fields without
// a word on it are set before the first front end is made, and not changed.
type Node struct {
	Settings
	Budget *budget.Budget
	// Tunneled says that something else than this node's kernel connects to the
	// endpoints of TCP.
	Tunneled bool

	Locality Locality
	Counters Counters

	// Targets are those of the VIPs that front ends here own: portal.Target. Any goroutine
	// may look.
	Targets sync.Map
	// Inherited are the sockets of a predecessor that nobody uses yet, by their names.
	// They are for who opens listeners, one at a time.
	Inherited map[string]*os.File

	// LimitErrors bounds how often the log is told that there is no room for clients.
	LimitErrors rate.Sometimes

	leads        bool // portal.Traits.Leads of Portal
	lastID       atomic.Uint64
	inheritedIDs atomic.Uint64 // the last number that is a predecessor's to give
	refusals     *rate.Limiter
}

// RefusalsPerSecond bounds how much of the trace and of the access log clients can
// take that are not admitted, or for whom there is no room, however many come.
const RefusalsPerSecond = 10

// Init makes n ready for front ends.
func (n *Node) Init() {
	n.refusals = rate.NewLimiter(RefusalsPerSecond, RefusalsPerSecond)
	n.LimitErrors = rate.Sometimes{First: 1, Interval: 10 * time.Second}
	n.Locality.now.Store(new(localities))
	n.Locality.isPod = n.IsPod
	if n.Portal != nil {
		n.leads, n.Locality.apart = n.Portal.Traits().Leads(), n.Portal.Traits().Apart
	}
	n.Locality.Refresh()
}

// NewID returns the number of a new client, 1 for the first.
func (n *Node) NewID() uint64 { return n.lastID.Add(1) }

// LastID returns how many clients have come to this process.
func (n *Node) LastID() uint64 {
	return max(n.lastID.Load(), n.inheritedIDs.Load()) - n.inheritedIDs.Load()
}

// LastNumber returns the last number that was given to a client.
func (n *Node) LastNumber() uint64 { return n.lastID.Load() }

// idsOfPredecessor is how many more clients a predecessor may number that is handing over: as many as come to the
// busiest node within seconds.
const idsOfPredecessor = 100_000

// InheritIDs leaves the numbers up to last, and some after that, to the clients of a predecessor. It is called before the
// first client comes.
func (n *Node) InheritIDs(last uint64) {
	n.inheritedIDs.Store(max(n.inheritedIDs.Load(), last+idsOfPredecessor))
	n.lastID.Store(n.inheritedIDs.Load())
}

// InheritedID returns the number of a client that a predecessor has given the number id: the same, unless it may be another's here.
func (n *Node) InheritedID(id uint64) uint64 {
	if id > n.inheritedIDs.Load() {
		return n.NewID()
	}
	return id
}

// ErrLeadsBack is why usher does not connect to some endpoints.
var ErrLeadsBack = errors.New("refused: a VIP or node port of this node, or usher's own address; connecting would loop")

// errMayLoop is why usher does not connect SCTP clients to some endpoints: no hop limit says how
// often an association has gone round.
var errMayLoop = errors.New("refused: its port is a node port: connecting may loop through another node")

// LeadsBack returns an error if a connection to an endpoint would come back to usher. A
// VIP does not where the portal leaves usher's own connections alone: a process of
// this node may be there. (Most endpoints that are VIPs are refused by package
// translate.) Nor does anything where the kernel leads nothing to usher, where the
// listeners are in another network namespace than the endpoints, or where something
// else than this node's kernel connects to those. It also reports whether a connection may come
// back by way of another node: its port is a node port, or it goes to a VIP. See HopsLeft.
func (n *Node) LeadsBack(protocol config.Protocol, to netip.AddrPort) (mayLoop bool, err error) {
	if !n.leads || n.Socket != nil || n.Tunneled {
		return false, nil
	}
	if kernel.IsLanding(to.Addr()) {
		return false, ErrLeadsBack
	}
	t := portal.Target{Protocol: portalProtocols[protocol], Addr: to.Addr(), Port: to.Port()}
	_, vip := n.Targets.Load(t)
	if vip && n.Portal.Mark() == 0 {
		return false, ErrLeadsBack
	}
	t.Addr = portal.FamilyOf(to.Addr()).Any()
	_, nodePort := n.Targets.Load(t)
	if nodePort && n.Locality.IsNode(to.Addr()) {
		return false, ErrLeadsBack
	}
	if mayLoop = vip || nodePort; mayLoop && protocol == config.SCTP {
		return false, errMayLoop
	}
	return mayLoop, nil
}

// A connection that may come back by way of another node has at most maxHops as its hop limit. One
// that would have less than minHops is refused: so a connection is never lost on the way to an endpoint
// that is nearer than that, whatever hop limit a client chooses.
const (
	maxHops = 64
	minHops = 8
)

// HopsLeft returns the hop limit for a TCP connection that may come back by way of another node: one less
// than that with which the client's packets came, as a router does. Nodes whose endpoints are node ports of
// each other would otherwise make connections without end. An error means that there is to be no connection.
func HopsLeft(came int) (int, error) {
	if hops := min(came, maxHops) - 1; hops >= minHops {
		return hops, nil
	}
	return 0, hopsUsedUp{}
}

// hopsUsedUp is why usher does not connect a client to any endpoint.
type hopsUsedUp struct{}

func (hopsUsedUp) Error() string {
	return "refused: its port is a node port and the hop limit is exhausted: the connection loops between nodes"
}

// Futile reports that no other endpoint would do: see package search.
func (hopsUsedUp) Futile() bool { return true }

// Target returns the portal's name for vip.
func Target(protocol config.Protocol, vip config.VIP) portal.Target {
	return portal.Target{Protocol: portalProtocols[protocol], Addr: vip.Addr, Port: vip.Port}
}

var portalProtocols = map[config.Protocol]portal.Protocol{
	config.TCP:  portal.TCP,
	config.UDP:  portal.UDP,
	config.SCTP: portal.SCTP,
}

// FrontEnd is one service port in one IP family, as its clients meet it.
type FrontEnd struct {
	*Node
	Protocol config.Protocol
	Affinity *affinity.Table
	Open     atomic.Int64 // connections
	Sessions atomic.Int64 // of UDP
	Ports    atomic.Int64 // those of the sessions that have one of this node's

	view  atomic.Pointer[View]
	tally tally
	story atomic.Pointer[Story]
}

// New returns a front end for port, without endpoints.
func New(node *Node, port config.ServicePort, table *affinity.Table) *FrontEnd {
	f := &FrontEnd{Node: node, Protocol: port.Protocol, Affinity: table}
	f.Swap(&View{Port: config.ServicePort{ID: port.ID}})
	return f
}

// View returns what clients that come now see.
func (f *FrontEnd) View() *View { return f.view.Load() }

// Swap makes clients see v, and returns what they saw before. Who waits for that to be
// replaced is told.
func (f *FrontEnd) Swap(v *View) (old *View) {
	v.Replaced = make(chan struct{})
	v.Clients = &conn.Port{ID: v.Port.ID, Protocol: f.Protocol, Unlogged: v.Port.AccessLog == config.Off, Slow: f.Slow, Observers: []conn.Observer{f.Trace, f}}
	if old = f.view.Swap(v); old != nil {
		close(old.Replaced)
	}
	return old
}

// ID returns which service port the front end serves. It is another one once that
// has been renamed.
func (f *FrontEnd) ID() config.PortID { return f.View().Port.ID }

// Origin tells from where a connection to an endpoint of v is, for a client that came from from
// to to. The zero from is as for Portal.Origin.
func (f *FrontEnd) Origin(v *View, from, to netip.Addr, endpoint *config.Endpoint) portal.Origin {
	var why portal.Seen
	switch {
	case f.NodeAddress || v.Port.NodeAddress:
		why = portal.SeenConfigured
	case f.Tunneled:
		why = portal.SeenTunnel
	case f.Protocol == config.SCTP:
		why = portal.SeenSCTP
	case from == to || f.Locality.IsNode(from):
		why = portal.SeenOwnProcess
	case from.IsValid() && (from.Is4() != endpoint.Addr.Addr().Is4() || !from.IsGlobalUnicast()):
		why = portal.SeenFamily
	case from == endpoint.Addr.Addr():
		why = portal.SeenItself
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
	return portal.Origin{Seen: why}
}

// Policy returns how reports of attempts are judged that were made from o, and those of rechecks. Only to
// endpoints that the kernel connects to by TCP a recheck is like a client: for UDP there is none, one of
// SCTP costs the endpoint an association, and one through a tunnel costs others. And a recheck,
// which comes from the node, proves nothing of an endpoint on another node that sees its clients, since a
// NetworkPolicy may let some of those in, and the nodes not.
func (f *FrontEnd) Policy(o portal.Origin) balance.Policy {
	p := f.Node.Quarantine
	p.Probed = p.Probed && f.Protocol == config.TCP && !f.Tunneled && (o.Here || o.Seen != portal.SeenClient)
	return p
}

// View is a front end's configuration at one moment: a value that is replaced,
// never changed.
type View struct {
	Port config.ServicePort
	All  []*balance.Endpoint // usable or not
	// Those for clients, by who asks: see config.ServicePort.
	Cluster, Internal, External *balance.Set

	Limits   *forward.Limits
	Replaced chan struct{} // closed when another view takes this one's place

	Clients *conn.Port // for the records of clients
}

// Endpoints returns the endpoints for clients that came to vip.
func (v *View) Endpoints(vip *config.VIP, nodeLocal bool) *balance.Set {
	switch {
	case !vip.External():
		return v.Internal
	case nodeLocal:
		return v.Cluster
	}
	return v.External
}

// VIPAt returns the VIP with that very address and port.
func (v *View) VIPAt(at netip.AddrPort) (*config.VIP, bool) {
	for i := range v.Port.VIPs { // one to some tens
		if vip := &v.Port.VIPs[i]; vip.Port == at.Port() && vip.Addr == at.Addr() {
			return vip, true
		}
	}
	return nil, false
}

// VIPOf returns the VIP that is a portal's target.
func (v *View) VIPOf(t portal.Target) (*config.VIP, bool) {
	return v.VIPAt(netip.AddrPortFrom(t.Addr, t.Port))
}

// vipFor returns the VIP that a client which connected to original meant: that one, or a
// node port.
func (v *View) vipFor(original netip.AddrPort) (*config.VIP, bool) {
	if vip, ok := v.VIPAt(original); ok {
		return vip, true
	}
	return v.VIPAt(netip.AddrPortFrom(portal.FamilyOf(original.Addr()).Any(), original.Port()))
}

// Redirect returns the rule that leads from t to a listener.
func (v *View) Redirect(t portal.Target, port uint16) portal.Rule {
	vip, _ := v.VIPOf(t)
	r := portal.Rule{Target: t, Action: portal.Redirect, LocalPort: port}
	if len(vip.Sources) > 0 {
		// Where the VIP is an address of this node, its processes come from there:
		// the listener knows whether they may; see Locality.Admits.
		itself := netip.PrefixFrom(vip.Addr, vip.Addr.BitLen())
		sources := append(slices.Clip(vip.Sources), itself)
		if vip.Balancers != nil { // who comes through them the listener is told
			sources = append(sources, vip.Balancers.Networks...)
		}
		r.Sources = portal.SourcesOf(sources)
	}
	if vip.External() && v.External.Len() == 0 {
		r.Action = v.Action(vip) // for clients of this node it leads to the listener all the same
	}
	return r
}

// ServesLike reports whether each kind of client that has endpoints by v has some by other, too. For
// service ports that differ in endpoints only, Action and Redirect are the same then.
func (v *View) ServesLike(other *View) bool {
	return (v.Cluster.Len() == 0) == (other.Cluster.Len() == 0) && (v.Internal.Len() == 0) == (other.Internal.Len() == 0) &&
		(v.External.Len() == 0) == (other.External.Len() == 0)
}

// Action says what becomes of what is sent to vip.
func (v *View) Action(vip *config.VIP) portal.Action {
	return ActionFor(vip.External(), v.Internal.Len(), v.External.Len(), v.Cluster.Len())
}

// ActionFor says what becomes of what is sent to a VIP with so many endpoints for each kind of
// client. Dropped is where the policy is Local and endpoints are on other nodes only; of VIPs
// that are external, what clients of this node send is led to those all the same.
func ActionFor(external bool, internals, externals, all int) portal.Action {
	switch {
	case all == 0 && (external || internals == 0):
		return portal.Reject
	case external && externals == 0, !external && internals == 0:
		return portal.Drop
	}
	return portal.Redirect
}
