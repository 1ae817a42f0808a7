package translate

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/usherproxy/usher/config"
)

// internalLocal reports whether clients of the cluster IPs may only use
// endpoints on this node.
func internalLocal(svc *corev1.Service) bool {
	return value(svc.Spec.InternalTrafficPolicy) == corev1.ServiceInternalTrafficPolicyLocal
}

// externalLocal reports the same for clients from outside. The policy means
// nothing for a Service that nobody reaches from outside.
func externalLocal(svc *corev1.Service) bool {
	reachable := svc.Spec.Type == corev1.ServiceTypeNodePort ||
		svc.Spec.Type == corev1.ServiceTypeLoadBalancer ||
		len(svc.Spec.ExternalIPs) > 0
	return reachable && svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// choose gives port its endpoints, and those of them that a new connection
// from each kind of client may use.
func choose(port *config.ServicePort, found []candidate, node config.Node) {
	local := func(c candidate) bool { return node.Name != "" && c.Node == node.Name }
	port.Endpoints = endpoints(found)
	port.Cluster = port.Endpoints
	found = taking(found)
	if usable := usableNow(found, near(found, node)); len(usable) < len(port.Endpoints) { // or it is the same list
		port.Cluster = endpoints(usable)
	}
	port.Internal, port.External = port.Cluster, port.Cluster
	if !port.InternalLocal && !port.ExternalLocal {
		return
	}
	here := endpoints(usableNow(filter(found, local), everywhere))
	if port.InternalLocal {
		port.Internal = here
	}
	if port.ExternalLocal {
		port.External = here
	}
}

// usableNow returns the ready candidates that near admits; or, if none at all
// are ready, those that still serve while they terminate, so that a rolling
// update or a drain loses nothing. Hints say nothing of the latter, which the
// controller no longer distributes.
func usableNow(found []candidate, near func(candidate) bool) []candidate {
	ready := filter(found, func(c candidate) bool { return c.Ready && near(c) })
	if len(ready) > 0 {
		return ready
	}
	return filter(found, func(c candidate) bool { return c.Serving && c.Terminating })
}

func everywhere(candidate) bool { return true }

// near returns which ready candidates the hints give to node: those for the
// node itself; otherwise those for its zone; otherwise all. A kind of hint
// counts only if every ready candidate has one and one of them is for us, since
// anything less means that the controller has not caught up.
func near(found []candidate, node config.Node) func(candidate) bool {
	ready := filter(found, func(c candidate) bool { return c.Ready })
	forNode := func(c candidate) bool { return node.Name != "" && hintsNode(c.hints, node.Name) }
	forZone := func(c candidate) bool { return node.Zone != "" && hintsZone(c.hints, node.Zone) }
	switch {
	case every(ready, hasNodeHint) && slices.ContainsFunc(ready, forNode):
		return forNode
	case every(ready, hasZoneHint) && slices.ContainsFunc(ready, forZone):
		return forZone
	}
	return everywhere
}

func hasNodeHint(c candidate) bool { return c.hints != nil && len(c.hints.ForNodes) > 0 }
func hasZoneHint(c candidate) bool { return c.hints != nil && len(c.hints.ForZones) > 0 }

func hintsNode(h *discoveryv1.EndpointHints, name string) bool {
	return h != nil && slices.ContainsFunc(h.ForNodes, func(n discoveryv1.ForNode) bool { return n.Name == name })
}

func hintsZone(h *discoveryv1.EndpointHints, name string) bool {
	return h != nil && slices.ContainsFunc(h.ForZones, func(z discoveryv1.ForZone) bool { return z.Name == name })
}

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
	var out []candidate
	for _, c := range cs {
		if keep(c) {
			out = append(out, c)
		}
	}
	return out
}

func every(cs []candidate, has func(candidate) bool) bool {
	return !slices.ContainsFunc(cs, func(c candidate) bool { return !has(c) })
}
