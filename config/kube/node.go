package kube

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/translate"
)

// toBeDeletedTaint is the taint that the cluster autoscaler sets on a node before it deletes the node
// (autoscaler/cluster-autoscaler/utils/taints; KEP-3836).
const toBeDeletedTaint = "ToBeDeletedByClusterAutoscaler"

// nodeOf returns usher's view of a Node object.
func nodeOf(node *corev1.Node) config.Node {
	out := config.Node{
		Name:    node.Name,
		Zone:    node.Labels[corev1.LabelTopologyZone],
		Leaving: node.DeletionTimestamp != nil || slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == toBeDeletedTaint }),
	}
	for _, cidr := range node.Spec.PodCIDRs {
		if p, err := netip.ParsePrefix(cidr); err == nil { // the API validates it
			out.PodCIDRs = append(out.PodCIDRs, p)
		}
	}
	out.Addresses = primaryAddresses(node.Status.Addresses)
	return out
}

// primaryAddresses returns, for each family, the address that kube-proxy calls primary: the first of type InternalIP,
// or if there is none, of type ExternalIP.
func primaryAddresses(all []corev1.NodeAddress) (out []netip.Addr) {
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for _, a := range all {
			addr, err := netip.ParseAddr(a.Address)
			if a.Type != kind || err != nil {
				continue
			}
			known := func(other netip.Addr) bool { return config.FamilyOf(other) == config.FamilyOf(addr) }
			if !slices.ContainsFunc(out, known) {
				out = append(out, addr.Unmap())
			}
		}
	}
	return out
}

// trim removes the parts of an object that usher never reads, before it is stored.
func trim(object any) (any, error) {
	switch o := object.(type) {
	case *corev1.Node:
		o.ManagedFields, o.Annotations = nil, nil
		o.Status = corev1.NodeStatus{Addresses: o.Status.Addresses}
	case *corev1.Service:
		o.ManagedFields = nil
		keepAnnotations(&o.ObjectMeta, translate.Reads)
		o.Spec.Selector = nil
		o.Status.Conditions = nil
	case *discoveryv1.EndpointSlice:
		o.ManagedFields, o.OwnerReferences = nil, nil
		keepAnnotations(&o.ObjectMeta, func(key string) bool { return key == corev1.EndpointsLastChangeTriggerTime })
	}
	return object, nil
}

// keepAnnotations removes the annotations that keep rejects. It makes a new map, since a map keeps its size when
// elements are removed.
func keepAnnotations(meta *metav1.ObjectMeta, keep func(key string) bool) {
	var kept map[string]string
	for key, value := range meta.Annotations {
		if !keep(key) {
			continue
		}
		if kept == nil {
			kept = map[string]string{}
		}
		kept[key] = value
	}
	meta.Annotations = kept
}
