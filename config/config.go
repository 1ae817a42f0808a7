package config

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// A Source is where the model comes from.
type Source interface {
	// Run watches until ctx ends and calls apply with what changed, never
	// concurrently. The first call holds every Service there is (perhaps none):
	// before it, nothing may be changed in the kernel. A later call holds only
	// the Services that changed. Run returns an error if it cannot go on, and
	// nil once ctx has ended.
	Run(ctx context.Context, apply func([]Service)) error
}

// Service is what usher serves for one Kubernetes Service.
type Service struct {
	Name types.NamespacedName

	// Ports has one element for each service port and IP family, sorted by
	// PortID. It is empty when the Service is gone, or is one that nobody
	// proxies (headless, ExternalName, another proxy's).
	Ports []ServicePort

	// Discovery is how clients find the Service by its name. It is nil when the
	// Service is gone, and if the source was not asked for it: then the source
	// does not tell at all of Services that nobody proxies.
	Discovery *Discovery

	// HealthCheckNodePort is where load balancers ask whether this node has
	// endpoints of its own; 0 if they do not.
	HealthCheckNodePort uint16
}

// Gone reports whether nothing is left of s: it is not served, and cannot be
// found by its name either.
func (s Service) Gone() bool { return len(s.Ports) == 0 && s.Discovery == nil }

// PortID identifies a service port. Kubernetes tells the ports of a Service
// apart by name; usher serves each IP family of one by itself.
type PortID struct {
	Namespace string
	Service   string
	Port      string // name of the service port; "" if it has none
	Family    Family
}

// ServiceName returns the name of the Service that the port belongs to.
func (id PortID) ServiceName() types.NamespacedName {
	return types.NamespacedName{Namespace: id.Namespace, Name: id.Service}
}

// String returns "namespace/service:port", the form that kube-proxy uses too,
// with "/IPv6" behind it for the IPv6 side.
func (id PortID) String() string {
	s := id.Namespace + "/" + id.Service
	if id.Port != "" {
		s += ":" + id.Port
	}
	if id.Family == IPv6 {
		s += "/IPv6"
	}
	return s
}

// Compare orders service ports by namespace, Service, port name and family.
func (id PortID) Compare(other PortID) int {
	return cmp.Or(
		cmp.Compare(id.Namespace, other.Namespace),
		cmp.Compare(id.Service, other.Service),
		cmp.Compare(id.Port, other.Port),
		cmp.Compare(id.Family, other.Family),
	)
}

// Family is an IP family.
type Family uint8

// The IP families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// FamilyOf returns the family of a.
func FamilyOf(a netip.Addr) Family {
	if a.Unmap().Is4() {
		return IPv4
	}
	return IPv6
}

// String returns the name that the Kubernetes API uses for f.
func (f Family) String() string { return fmt.Sprintf("IPv%d", uint8(f)) }

// Protocol is a transport protocol as the Kubernetes API writes it.
type Protocol string

// The protocols that a service port may have.
const (
	TCP  Protocol = "TCP"
	UDP  Protocol = "UDP"
	SCTP Protocol = "SCTP"
)

// Node is the node that usher runs on.
type Node struct {
	// Name is the name that EndpointSlices give this node. If it is empty, no
	// endpoint is local.
	Name string

	// Zone is the node's label topology.kubernetes.io/zone. If it is empty, no
	// hint for a zone is for this node.
	Zone string

	// Labels are labels that the node is said to have, whatever its Node object says.
	Labels map[string]string

	// PodCIDRs are where the Pods of this node have their addresses, as far as
	// that is known.
	PodCIDRs []netip.Prefix

	// Addresses are the node's primary addresses, at most one of each family, as
	// its Node object tells them. None of a family that is not known.
	Addresses []netip.Addr

	// ServiceCIDRs are where the cluster's Services have their cluster IPs, as far as that is
	// known; only if this node has a Node object.
	ServiceCIDRs []netip.Prefix

	// Leaving is set while the node is being deleted, is marked for that by the
	// cluster autoscaler, or has had no Node object yet: load balancers should not use it.
	Leaving bool
}

// Never is what a duration of a ServicePort is where the proxy may have a default, and the
// Service wants none.
const Never time.Duration = -1

// Switch is what a Service may say of something that has a default; 0 is the default.
type Switch int8

// The values.
const (
	On  Switch = 1
	Off Switch = -1
)

// ServicePort is one port of a Service in one IP family.
type ServicePort struct {
	ID          PortID
	Protocol    Protocol
	AppProtocol string // a hint for people; changes nothing

	// VIPs are the places where clients connect: never empty, the cluster IP
	// first.
	VIPs []VIP

	// AffinityTimeout is how long a client keeps its endpoint after its last
	// new connection; 0 means no session affinity.
	AffinityTimeout time.Duration

	// UDPIdleTimeout is how long a UDP session of this port lasts without a
	// datagram, answered or not; 0 means as long as the proxy's own default.
	UDPIdleTimeout time.Duration

	// IdleTimeout is how long a TCP connection or SCTP association of this port
	// lasts in which nothing moves, and MaxAge how long one lasts at the most;
	// 0 means what the proxy's own defaults say.
	IdleTimeout, MaxAge time.Duration

	// DrainTimeout is after how long connections and associations of this port end whose
	// endpoint left the Service or terminates; 0 is the proxy's default.
	DrainTimeout time.Duration

	// SlowStart is how long it takes until an endpoint that is new has its whole share of new
	// connections; 0 is the proxy's default.
	SlowStart time.Duration

	// AccessLog is whether clients of this port are in the access log; 0 is the proxy's default.
	AccessLog Switch

	// NodeAddress says that the endpoints see the node's address, and not their clients'.
	NodeAddress bool

	// ProxyProtocol is how endpoints are told who the client is, and to which VIP it has
	// connected; 0 means that they are not told. An SCTP port has none, a UDP port none
	// but ProxyV2.
	ProxyProtocol ProxyProtocol

	// Scheduler chooses among the endpoints for a new connection; 0 is the proxy's default.
	Scheduler Scheduler

	// Probe is how the endpoints are probed.
	Probe Probe

	// EndpointLimit is how many connections or associations of this port each endpoint may
	// have at a time; 0 is the proxy's default, Unlimited any number. A UDP port has no limit.
	// QueueTimeout is how long a client waits at the most until one has room; 0 is the proxy's default.
	EndpointLimit int
	QueueTimeout  time.Duration

	// Endpoints are all endpoints of this port, usable or not, sorted by
	// address. In-flight connections to an endpoint end for UDP when it
	// leaves this list.
	Endpoints []Endpoint

	// Cluster, Internal and External are the endpoints that a new connection
	// may use: Internal and External as the Service's traffic policies want it
	// for clients of cluster IPs and for clients from outside; Cluster is what
	// both of them are under the policy Cluster, and what a client on this node
	// may use whatever the external policy says.
	Cluster, Internal, External []Endpoint

	// InternalLocal and ExternalLocal say that the policy is Local: without
	// an endpoint on this node, packets are dropped and not refused, since
	// another node may have one.
	InternalLocal, ExternalLocal bool

	// Topology is by what Cluster was chosen from all endpoints; nil if where they are does
	// not matter.
	Topology *Topology
}

// Unlimited is a ServicePort's EndpointLimit if it is to have none, MaxEndpointLimit the
// greatest: more than a node can have open.
const (
	Unlimited        = -1
	MaxEndpointLimit = 1_000_000
)

// Topology is how endpoints are chosen by where they are: on nodes that have a label with the
// value that this node has.
type Topology struct {
	// Keys are the labels that the Service names, in its order: the first that leaves an
	// endpoint decides. There are none where hints of the EndpointSlices decided.
	Keys []string
	// Key is the label that decided, or "*", which all have; "" if none left an endpoint.
	// Of hints it is that of what they are for, a node or a zone. Value is this node's.
	Key, Value string
}

// VIPKind says what sort of address a VIP is.
type VIPKind string

// The kinds of VIP, named after the Service fields they come from.
const (
	ClusterIP      VIPKind = "ClusterIP"
	NodePort       VIPKind = "NodePort"
	ExternalIP     VIPKind = "ExternalIP"
	LoadBalancerIP VIPKind = "LoadBalancerIP"
)

// VIP is an address and port that clients use for a service port.
type VIP struct {
	Kind VIPKind

	// Addr is the address; for a node port the unspecified address of the
	// family, which stands for every address of this node.
	Addr netip.Addr
	Port uint16

	// Sources are the only networks that may connect; none means everybody.
	Sources []netip.Prefix

	// Balancers are the load balancers in front of the VIP that say who their clients
	// are; nil if there are none. Their networks need not be among Sources.
	Balancers *Balancers
}

// Balancers are load balancers whose TCP connections begin with a header of the PROXY
// protocol. Of nobody else is one believed.
type Balancers struct {
	// Networks are where their connections come from: at least one.
	Networks []netip.Prefix
	// Clients are the only networks whose clients may come through them; none means
	// everybody.
	Clients []netip.Prefix
}

// AddrPort returns the address and port of v.
func (v VIP) AddrPort() netip.AddrPort { return netip.AddrPortFrom(v.Addr, v.Port) }

// External reports whether the external traffic policy applies to v's clients.
func (v VIP) External() bool { return v.Kind != ClusterIP }

// Allows reports whether a client with address a may connect.
func (v VIP) Allows(a netip.Addr) bool {
	return len(v.Sources) == 0 || contains(v.Sources, a)
}

// Expects reports whether a connection from address a has to begin with a header of the
// PROXY protocol.
func (v VIP) Expects(a netip.Addr) bool {
	return v.Balancers != nil && contains(v.Balancers.Networks, a)
}

// Allows reports whether a client with address a may come through a balancer.
func (b *Balancers) Allows(a netip.Addr) bool {
	return len(b.Clients) == 0 || contains(b.Clients, a)
}

func contains(networks []netip.Prefix, a netip.Addr) bool {
	a = a.Unmap()
	for _, p := range networks {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// ProxyProtocol is a version of the PROXY protocol
// (https://www.haproxy.org/download/2.6/doc/proxy-protocol.txt); 0 is none.
type ProxyProtocol uint8

// The versions.
const (
	ProxyV1 ProxyProtocol = iota + 1 // a line of text
	ProxyV2                          // binary
)

// String returns "v1", "v2", or "" for none.
func (p ProxyProtocol) String() string { return [...]string{"", "v1", "v2"}[p] }

// Endpoint is one endpoint of a service port.
type Endpoint struct {
	Addr netip.AddrPort

	// Pod is "namespace/name" of the Pod behind the address, Node the name of
	// its node and Zone that node's zone: "" where the EndpointSlice does not
	// tell.
	Pod, Node, Zone string

	// Conditions as EndpointSlice defines them, its defaults filled in.
	Ready, Serving, Terminating bool

	Weight Weight
}
