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

// externalLocal reports the same for clients from outside. If the Service is not reachable from outside, the policy has
// no effect.
func externalLocal(svc *corev1.Service) bool {
	reachable := svc.Spec.Type == corev1.ServiceTypeNodePort ||
		svc.Spec.Type == corev1.ServiceTypeLoadBalancer ||
		len(svc.Spec.ExternalIPs) > 0
	return reachable && svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// choose sets port.Endpoints to found, and selects the endpoints that new connections of each kind of client may use.
// It selects them from weighted, which are the endpoints in found whose weight is not 0. keys are the Service's
// topology keys.
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

// usableNow returns the ready candidates that are admitted. If there are none, it returns those that still serve while
// they terminate: otherwise a rolling update or a drain would lose connections. Hints do not restrict the latter, since
// the controller no longer assigns them any.
func usableNow(found []candidate, admits func(candidate) bool) []candidate {
	ready := filter(found, func(c candidate) bool { return c.Ready && admits(c) })
	if len(ready) > 0 {
		return ready
	}
	return filter(found, func(c candidate) bool { return c.Serving && c.Terminating })
}

func everywhere(candidate) bool { return true }

// hinted returns a function that reports whether the hints make a ready candidate usable on this node. Candidates for
// the node itself are usable; if there are none, those for its zone; otherwise all. A kind of hint counts only if every
// ready candidate has one, and at least one is for this node or zone. Otherwise the controller has not caught up.
// kube-proxy does the same (pkg/proxy/topology.go of 1.36). The controller assigns hints because of the Service's
// trafficDistribution or its annotation service.kubernetes.io/topology-mode.
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

// filter returns the candidates to keep; cs itself if these are all.
func filter(cs []candidate, keep func(candidate) bool) []candidate {
	if every(cs, keep) {
		return cs
	}
	return slices.DeleteFunc(slices.Clone(cs), func(c candidate) bool { return !keep(c) })
}

func every(cs []candidate, has func(candidate) bool) bool {
	return !slices.ContainsFunc(cs, func(c candidate) bool { return !has(c) })
}
