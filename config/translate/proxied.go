package translate

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// LabelServiceProxyName is the label of a Service that names its proxy.
const LabelServiceProxyName = "service.kubernetes.io/service-proxy-name"

// AnyProxy stands for the name of every proxy, and for none. A label cannot have this value.
const AnyProxy = "*"

// Proxied reports whether usher serves svc. If usher has a name, proxyName, it serves only the Services labeled with
// it, alongside another proxy that serves the rest. Without a name, it serves only those without the label. (Cilium's
// k8s-service-proxy-name means the same.) With AnyProxy, it serves both.
func Proxied(svc *corev1.Service, proxyName string) bool {
	if svc.Spec.Type == corev1.ServiceTypeExternalName || svc.Spec.ClusterIP == "" || svc.Spec.ClusterIP == corev1.ClusterIPNone {
		return false
	}
	name, labeled := svc.Labels[LabelServiceProxyName] // a label without a value names another proxy, too
	return proxyName == AnyProxy || name == proxyName && labeled == (proxyName != "")
}

// ServiceOf returns the name of the Service that slice belongs to, and false if it belongs to none.
func ServiceOf(slice *discoveryv1.EndpointSlice) (types.NamespacedName, bool) {
	name := slice.Labels[discoveryv1.LabelServiceName]
	return types.NamespacedName{Namespace: slice.Namespace, Name: name}, name != ""
}

func belongs(slice *discoveryv1.EndpointSlice, svc *corev1.Service) bool {
	return slice.Namespace == svc.Namespace && slice.Labels[discoveryv1.LabelServiceName] == svc.Name
}

// slicesOf returns the slices in all that belong to svc. As with kube-proxy, the label LabelServiceProxyName of a slice
// has no effect, and slices with the label service.kubernetes.io/headless are ignored.
func slicesOf(svc *corev1.Service, all []*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice {
	return slices.DeleteFunc(slices.Clone(all), func(s *discoveryv1.EndpointSlice) bool {
		_, headless := s.Labels[corev1.IsHeadlessService]
		return headless || !belongs(s, svc)
	})
}
