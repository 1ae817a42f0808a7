package translate

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/usherproxy/usher/config"
)

// Options apply to every Service. The zero value is valid for objects from an API server.
type Options struct {
	// ServiceProxyName is usher's name among the proxies of a cluster: see Proxied. "" is none.
	ServiceProxyName string

	// AllowLoopbackEndpoints allows endpoints in 127.0.0.0/8 and ::1: for manifests on a developer's machine. It must
	// be off for objects from an API server, whose authors must not reach listeners on a node's loopback address.
	AllowLoopbackEndpoints bool

	// ClusterIPs are the cluster IPs of all Services, which no endpoint may have. Nil is an empty set. A Service's own
	// are refused in any case.
	ClusterIPs ClusterIPs

	// LoadBalancers are the source networks of the load balancers for AnnotationAWSProxyProtocol; none means unknown.
	LoadBalancers []netip.Prefix

	// ForbiddenEndpoints are networks in which no endpoint may be.
	ForbiddenEndpoints []netip.Prefix
	// NoClientAddress forbids the annotation AnnotationClientAddress.
	NoClientAddress bool
	// NodeAddress makes the endpoints of all Services see the node's address, even with that annotation.
	NodeAddress bool

	// Policy is the node's policy, for all that a Service does not set itself.
	Policy config.Policy
	// NoAccessLog says that this node has no access log.
	NoAccessLog bool

	// Nodes returns the labels of the cluster's nodes, as far as NodeKeys needs them.
	Nodes Nodes
}

// Service returns the model of svc on node, and the problems of the omitted parts. It uses the EndpointSlices in all
// that belong to svc and ignores the others. A [Store] returns the same result, faster after a change.
//
// The result has no ports if usher does not proxy svc.
func Service(svc *corev1.Service, all []*discoveryv1.EndpointSlice, node config.Node, opts Options) (config.Service, []Problem) {
	name := types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}
	t := newTemplate(name, svc, ClusterIPsOf(svc, opts.ServiceProxyName), opts)
	return t.withEndpoints(name, all, node, opts)
}

// template is the translation of a Service object: a Service changes rarely, and its endpoints often.
type template struct {
	of       *corev1.Service
	proxied  bool
	ports    []config.ServicePort // their endpoints have no meaning
	own      []netip.Addr         // see ClusterIPsOf
	weights  weights
	keys     []string // see AnnotationTopologyKeys
	problems []Problem
}

// newTemplate translates svc without its endpoints. It uses only those options that never change.
func newTemplate(name types.NamespacedName, svc *corev1.Service, own []netip.Addr, opts Options) template {
	t := template{of: svc, own: own, proxied: Proxied(svc, opts.ServiceProxyName)}
	if !t.proxied {
		return t
	}
	var wrong report
	p := &problems{kind: "Service", name: name, report: &wrong}
	unknownAnnotations(svc, p)
	t.ports = servicePorts(svc, opts, p)
	t.weights, t.keys = annotatedWeights(svc, p), topologyKeys(svc, p)
	t.problems = wrong.list()
	return t
}

// withEndpoints returns the same as [Service].
func (t *template) withEndpoints(name types.NamespacedName, all []*discoveryv1.EndpointSlice, node config.Node, opts Options) (config.Service, []Problem) {
	out := config.Service{Name: name}
	if !t.proxied {
		return out, nil
	}
	out.Ports, out.HealthCheckNodePort = slices.Clone(t.ports), healthCheckNodePort(t.of)
	var wrong report
	refuse := forbidden{loopback: !opts.AllowLoopbackEndpoints, networks: opts.ForbiddenEndpoints, all: opts.ClusterIPs, own: t.own}
	found := gather(out.Ports, slicesOf(t.of, all), refuse, &wrong)
	at := placeOf(node, opts.Nodes)
	for i := range out.Ports {
		weighted := found[i]
		if t.weights != nil {
			weighted = t.weights.weigh(found[i])
		}
		choose(&out.Ports[i], found[i], weighted, at, t.keys)
	}
	return out, slices.Concat(t.problems, wrong.list())
}

// The size of a model is the product of two lists, whose lengths an author determines. So these are limits for each
// Service.
const (
	maxVIPs      = 100_000 // pairs of a port and a VIP, a source range or a network of load balancers
	maxEndpoints = 250_000 // pairs of a port and an endpoint
)

// servicePorts returns the ports of svc in each of its IP families, without endpoints, sorted by PortID.
func servicePorts(svc *corev1.Service, opts Options, p *problems) []config.ServicePort {
	clusterIPs := clusterIPs(svc, p)
	external := externalVIPs(svc, clusterIPs, p)
	timeout := affinityTimeout(svc, p)
	policy, valid := policyOf(svc, opts, p)
	nodeAddress := annotatedNodeAddress(svc, opts, p)
	version := proxyProtocol(svc, p)
	balancers := balancersOf(svc, opts.LoadBalancers, p)

	var out []config.ServicePort
	names := map[string]bool{}
	perPort, count := len(clusterIPs)+len(external), 0
	for _, v := range external {
		perPort += len(v.Sources)
	}
	if balancers != nil {
		perPort += len(balancers.Networks)
	}
	for i := range svc.Spec.Ports {
		port := &svc.Spec.Ports[i]
		path := field.NewPath("spec", "ports").Index(i)
		if count += perPort; count > maxVIPs && i > 0 {
			p.add(field.Invalid(path, port.Port, fmt.Sprintf("not served, nor are later ports: a Service may have no more than %d pairs of a port and an address or source range", maxVIPs)))
			break
		}
		if names[port.Name] {
			p.add(field.Duplicate(path.Child("name"), port.Name))
			continue
		}
		names[port.Name] = true
		if !validPort(port, path, p) {
			continue
		}
		protocol := protocolOf(port.Protocol)
		for _, ip := range clusterIPs {
			family := config.FamilyOf(ip)
			served := config.ServicePort{
				ID:              config.PortID{Namespace: svc.Namespace, Service: svc.Name, Port: port.Name, Family: family},
				Protocol:        protocol,
				AppProtocol:     value(port.AppProtocol),
				VIPs:            vips(svc, port, ip, external, path, p),
				AffinityTimeout: timeout,
				Policy:          policy.For(protocol),
				NodeAddress:     nodeAddress,
				ProxyProtocol:   version.over(protocol, path, p),
				InternalLocal:   internalLocal(svc),
				ExternalLocal:   externalLocal(svc),
			}
			served.Probe = probeOf(&policy, served.Protocol, valid[annotationProbe], path, p)
			if served.Protocol == config.TCP {
				behind(served.VIPs, balancers)
			}
			out = append(out, served)
		}
	}
	slices.SortFunc(out, func(a, b config.ServicePort) int { return a.ID.Compare(b.ID) })
	return out
}

// validPort reports whether port can be served.
func validPort(port *corev1.ServicePort, path *field.Path, p *problems) bool {
	if port.Port < 1 || port.Port > 65535 {
		p.add(field.Invalid(path.Child("port"), port.Port, "must be between 1 and 65535, inclusive"))
		return false
	}
	switch protocolOf(port.Protocol) {
	case config.TCP, config.UDP, config.SCTP:
		return true
	}
	p.add(field.NotSupported(path.Child("protocol"), port.Protocol, []config.Protocol{config.SCTP, config.TCP, config.UDP}))
	return false
}

// protocolOf returns p, or the API's default if p is empty.
func protocolOf(p corev1.Protocol) config.Protocol {
	if p == "" {
		return config.TCP
	}
	return config.Protocol(p)
}

// affinityTimeout returns how long a client keeps its endpoint; 0 without session affinity.
func affinityTimeout(svc *corev1.Service, p *problems) time.Duration {
	if svc.Spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		return 0
	}
	seconds := corev1.DefaultClientIPServiceAffinitySeconds
	if c := svc.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		seconds = *c.ClientIP.TimeoutSeconds
	}
	if seconds < 1 || seconds > 86400 {
		p.add(field.Invalid(field.NewPath("spec", "sessionAffinityConfig", "clientIP", "timeoutSeconds"), seconds,
			"must be between 1 and 86400, inclusive"))
		seconds = corev1.DefaultClientIPServiceAffinitySeconds
	}
	return time.Duration(seconds) * time.Second
}

// healthCheckNodePort returns the port on which load balancers check this node's endpoints; 0 if they do not.
func healthCheckNodePort(svc *corev1.Service) uint16 {
	port := svc.Spec.HealthCheckNodePort
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer || !externalLocal(svc) || port < 1 || port > 65535 {
		return 0
	}
	return uint16(port)
}

func value[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}
