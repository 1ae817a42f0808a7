package config

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// A Source provides the model.
type Source interface {
	// Run watches until ctx ends and calls apply with changes, never concurrently. The first call has all Services
	// (perhaps none). Before it, the caller must not change rules or routes. Later calls have only the Services that
	// changed. Run returns an error if it cannot continue, and nil once ctx has ended.
	Run(ctx context.Context, apply func([]Service)) error
}

// Service is the model of one Kubernetes Service.
type Service struct {
	Name types.NamespacedName

	// Ports has one element for each service port and IP family, sorted by PortID. It is empty if the Service is
	// deleted, is not proxied (headless, ExternalName, another proxy's), or has no valid port.
	Ports []ServicePort

	// Discovery is how clients find the Service by its name. It is nil if the Service is deleted, if it has no valid
	// cluster IP yet, and if the source was created without discovery. A source without discovery treats a Service that
	// is not proxied as deleted.
	Discovery *Discovery

	// HealthCheckNodePort is the port at which load balancers check whether this node has local endpoints; 0 for none.
	HealthCheckNodePort uint16
}

// Gone reports whether s has neither ports nor Discovery: the Service is deleted, or usher has nothing to do with it.
func (s Service) Gone() bool { return len(s.Ports) == 0 && s.Discovery == nil }

// PortID identifies a service port. Kubernetes identifies the ports of a Service by name; usher serves each IP family
// of a port separately.
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

// String returns "namespace/service:port", the form that kube-proxy uses too, with the suffix "/IPv6" for IPv6.
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
	// Name is the name of this node in EndpointSlices. If it is empty, no endpoint is local.
	Name string

	// Zone is the label topology.kubernetes.io/zone of this node's Node object; "" if unknown. Package translate
	// prefers this label in Labels and, if both are missing, looks it up in its Options.Nodes. Zone hints need a zone.
	Zone string

	// Labels are configured labels, which override the Node object's.
	Labels map[string]string

	// PodCIDRs are the networks of this node's Pods, as far as known.
	PodCIDRs []netip.Prefix

	// Addresses are the node's primary addresses from its Node object, at most one of each family, and none if unknown.
	Addresses []netip.Addr

	// ServiceCIDRs are the networks of the cluster's Services, as far as known; none without a Node object.
	ServiceCIDRs []netip.Prefix

	// Leaving is set if load balancers should not use this node. It is being deleted, the cluster autoscaler has marked
	// it for deletion, or the Node object of its name does not exist.
	Leaving bool
}

// ServicePort is one port of a Service in one IP family.
type ServicePort struct {
	ID          PortID
	Protocol    Protocol
	AppProtocol string // for information only; does not change how usher serves the port

	// VIPs are the addresses for clients: never empty, the cluster IP first.
	VIPs []VIP

	// AffinityTimeout is how long a client keeps its endpoint after its last new connection; 0 means no session
	// affinity.
	AffinityTimeout time.Duration

	// Policy is how connections are treated. Settings without an effect on the protocol are 0.
	Policy

	// NodeAddress is set if the endpoints must see the node's address, not their clients' addresses.
	NodeAddress bool

	// ProxyProtocol is the version of the PROXY protocol header in which usher sends endpoints the addresses of the
	// client and of the VIP; 0 means no header. It is 0 for an SCTP port, and 0 or ProxyV2 for a UDP port.
	ProxyProtocol ProxyProtocol

	// Endpoints are all endpoints of this port, usable or not, sorted by address. UDP sessions to an endpoint end when
	// it leaves this list.
	Endpoints []Endpoint

	// Cluster, Internal and External are the endpoints that a new connection may use. Internal and External follow the
	// Service's traffic policies for clients of cluster IPs and for clients from outside. If a policy is Cluster, its
	// list equals the field Cluster. For external VIPs, clients on this node use
	// Cluster under either policy.
	Cluster, Internal, External []Endpoint

	// InternalLocal and ExternalLocal say that the policy is Local. If only other nodes have usable endpoints, portals
	// that install rules drop packets and do not reject them.
	InternalLocal, ExternalLocal bool

	// Topology is how Cluster was chosen from all endpoints; nil if their location does not matter.
	Topology *Topology
}

// Topology says how location determines which endpoints are used: by the Service's topology keys, or by the hints of
// its EndpointSlices.
type Topology struct {
	// Keys are the labels that the Service names, in its order: the first with a matching endpoint decides. There are
	// none if hints of the EndpointSlices decided.
	Keys []string
	// Key is the label that decided, or "*", which all nodes have; "" if no endpoint matched. For hints, it is the
	// hostname or the zone label. Value is this node's value of Key.
	Key, Value string
}

// VIPKind is a type of VIP.
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

	// Addr is the address; for a node port the unspecified address of the family, which stands for every address of
	// this node.
	Addr netip.Addr
	Port uint16

	// Sources are the only networks whose clients may connect; none means all clients.
	Sources []netip.Prefix

	// Balancers are the load balancers in front of the VIP that announce their clients' addresses; nil if there are
	// none. Their networks need not be among Sources.
	Balancers *Balancers
}

// Balancers are load balancers whose TCP connections begin with a header of the PROXY protocol. usher accepts such a
// header from no other source.
type Balancers struct {
	// Networks are the sources of their connections: at least one.
	Networks []netip.Prefix
	// Clients are the only networks whose clients may connect through them; none means all clients.
	Clients []netip.Prefix
}

// AddrPort returns the address and port of v.
func (v VIP) AddrPort() netip.AddrPort { return netip.AddrPortFrom(v.Addr, v.Port) }

// External reports whether the external traffic policy applies to v's clients.
func (v VIP) External() bool { return v.Kind != ClusterIP }

// Precedes reports whether v takes precedence over w, a VIP of another Service with the same address and port. The API
// server assigns cluster IPs, and load balancer IPs need the permission to change a Service's status. External IPs come
// last, since every author of a Service can set them.
func (v VIP) Precedes(w VIP) bool {
	order := []VIPKind{ExternalIP, LoadBalancerIP, ClusterIP}
	return slices.Index(order, v.Kind) > slices.Index(order, w.Kind)
}

// Allows reports whether a client with address a may connect.
func (v VIP) Allows(a netip.Addr) bool {
	return len(v.Sources) == 0 || contains(v.Sources, a)
}

// Expects reports whether a connection from address a must begin with a header of the PROXY protocol.
func (v VIP) Expects(a netip.Addr) bool {
	return v.Balancers != nil && contains(v.Balancers.Networks, a)
}

// Allows reports whether a client with address a may connect through a balancer.
func (b *Balancers) Allows(a netip.Addr) bool {
	return len(b.Clients) == 0 || contains(b.Clients, a)
}

func contains(networks []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(a.Unmap()) })
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

	// Pod is "namespace/name" of the Pod with this address, Node the name of its node, and Zone that node's zone. A
	// field is "" if the EndpointSlice lacks it.
	Pod, Node, Zone string

	// Conditions as EndpointSlice defines them, with its defaults filled in.
	Ready, Serving, Terminating bool

	Weight Weight
}
