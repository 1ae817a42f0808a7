package translate

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// LabelServiceProxyName is the label of a Service that names the proxy which serves it.
const LabelServiceProxyName = "service.kubernetes.io/service-proxy-name"

// Proxied reports whether svc is a Service that usher serves. If usher was told
// that it has a name, proxyName, it serves only the Services that are labelled
// with it, so that it can stand beside another proxy that serves the rest;
// otherwise only those without the label. (Cilium's k8s-service-proxy-name
// means the same.)
func Proxied(svc *corev1.Service, proxyName string) bool {
	switch {
	case svc.Spec.Type == corev1.ServiceTypeExternalName:
		return false // DNS answers with a CNAME
	case svc.Spec.ClusterIP == "" || svc.Spec.ClusterIP == corev1.ClusterIPNone:
		return false
	}
	if proxyName == "" {
		return !labelled(svc.Labels)
	}
	return svc.Labels[LabelServiceProxyName] == proxyName
}

// labelled reports whether labels name a proxy, if only by an empty name.
func labelled(labels map[string]string) bool {
	_, ok := labels[LabelServiceProxyName]
	return ok
}

// ServiceOf returns the name of the Service that slice belongs to, and false
// if it belongs to none.
func ServiceOf(slice *discoveryv1.EndpointSlice) (types.NamespacedName, bool) {
	name := slice.Labels[discoveryv1.LabelServiceName]
	return types.NamespacedName{Namespace: slice.Namespace, Name: name}, name != ""
}

// belongs reports whether the endpoints of slice are svc's.
func belongs(slice *discoveryv1.EndpointSlice, svc *corev1.Service) bool {
	return slice.Namespace == svc.Namespace && slice.Labels[discoveryv1.LabelServiceName] == svc.Name
}

// slicesOf returns those of all that belong to svc. As with kube-proxy, the label
// LabelServiceProxyName of a slice means nothing, and those with the label
// service.kubernetes.io/headless are ignored.
func slicesOf(svc *corev1.Service, all []*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice {
	var out []*discoveryv1.EndpointSlice
	for _, s := range all {
		if _, headless := s.Labels[corev1.IsHeadlessService]; belongs(s, svc) && !headless {
			out = append(out, s)
		}
	}
	return out
}
