package translate

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/usherproxy/usher/config"
)

// internalLocal reports whether clients of the cluster IPs may only use endpoints on this node.
func internalLocal(svc *corev1.Service) bool {
	return value(svc.Spec.InternalTrafficPolicy) == corev1.ServiceInternalTrafficPolicyLocal
}

// externalLocal reports the same for clients from outside. The policy has no effect on a Service that is not reachable
// from outside.
func externalLocal(svc *corev1.Service) bool {
	reachable := svc.Spec.Type == corev1.ServiceTypeNodePort ||
		svc.Spec.Type == corev1.ServiceTypeLoadBalancer ||
		len(svc.Spec.ExternalIPs) > 0
	return reachable && svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// choose sets port.Endpoints to found. From weighted, the endpoints in found whose weight is not 0, it selects those
// that new connections of each kind of client may use. keys are the Service's topology keys.
func choose(port *config.ServicePort, found, weighted []candidate, at place, keys []string) {
	local := func(c candidate) bool { return at.Name != "" && c.Node == at.Name }
	port.Endpoints = endpoints(found)
	port.Cluster = port.Endpoints
	var usable []candidate
	if len(keys) > 0 {
		usable, port.Topology = at.nearest(usableNow(weighted, everywhere), keys)
	} else {
		var admits func(candidate) bool
		admits, port.Topology = at.hinted(weighted)
		usable = usableNow(weighted, admits)
	}
	if len(usable) < len(port.Endpoints) { // otherwise the list is the same
		port.Cluster = endpoints(usable)
	}
	port.Internal, port.External = port.Cluster, port.Cluster
	if !port.InternalLocal && !port.ExternalLocal {
		return
	}
	here := endpoints(usableNow(filter(weighted, local), everywhere))
	if port.InternalLocal {
		port.Internal = here
	}
	if port.ExternalLocal {
		port.External = here
	}
}

// usableNow returns the ready candidates that are admitted. If none at all are ready, it returns those that still serve
// while they terminate, so that a rolling update or a drain loses no connections. Hints do not cover the latter, which
// the controller no longer distributes.
func usableNow(found []candidate, admits func(candidate) bool) []candidate {
	ready := filter(found, func(c candidate) bool { return c.Ready && admits(c) })
	if len(ready) > 0 {
		return ready
	}
	return filter(found, func(c candidate) bool { return c.Serving && c.Terminating })
}

func everywhere(candidate) bool { return true }

// hinted returns which ready candidates the hints assign to this node: those for the node itself; otherwise those for
// its zone; otherwise all. A kind of hint counts only if every ready candidate has one and at least one is for this
// node or zone: otherwise the controller has not caught up. kube-proxy does the same (pkg/proxy/topology.go of 1.36).
// The Service's trafficDistribution or annotation service.kubernetes.io/topology-mode is why the controller assigns
// hints.
func (at place) hinted(found []candidate) (admits func(candidate) bool, by *config.Topology) {
	ready := filter(found, func(c candidate) bool { return c.Ready })
	forNode := func(c candidate) bool {
		return at.Name != "" && c.hints != nil && slices.Contains(c.hints.ForNodes, discoveryv1.ForNode{Name: at.Name})
	}
	forZone := func(c candidate) bool {
		return at.Zone != "" && c.hints != nil && slices.Contains(c.hints.ForZones, discoveryv1.ForZone{Name: at.Zone})
	}
	switch {
	case every(ready, hasNodeHint) && slices.ContainsFunc(ready, forNode):
		return forNode, &config.Topology{Key: corev1.LabelHostname, Value: at.Name}
	case every(ready, hasZoneHint) && slices.ContainsFunc(ready, forZone):
		return forZone, &config.Topology{Key: corev1.LabelTopologyZone, Value: at.Zone}
	}
	return everywhere, nil
}

func hasNodeHint(c candidate) bool { return c.hints != nil && len(c.hints.ForNodes) > 0 }
func hasZoneHint(c candidate) bool { return c.hints != nil && len(c.hints.ForZones) > 0 }

// endpoints returns the endpoints of cs; nil if there are none.
func endpoints(cs []candidate) []config.Endpoint {
	if len(cs) == 0 {
		return nil
	}
	out := make([]config.Endpoint, len(cs))
	for i, c := range cs {
		out[i] = c.Endpoint
	}
	return out
}

func filter(cs []candidate, keep func(candidate) bool) []candidate {
	return slices.DeleteFunc(slices.Clone(cs), func(c candidate) bool { return !keep(c) })
}

func every(cs []candidate, has func(candidate) bool) bool {
	return !slices.ContainsFunc(cs, func(c candidate) bool { return !has(c) })
}
