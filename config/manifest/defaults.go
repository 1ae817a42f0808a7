package manifest

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// The functions in this file fill in the API reference's defaults for missing fields.

func defaultMeta(meta *metav1.ObjectMeta) {
	if meta.Namespace == "" {
		meta.Namespace = metav1.NamespaceDefault
	}
}

func defaultService(svc *corev1.Service) {
	defaultMeta(&svc.ObjectMeta)
	spec := &svc.Spec
	setDefault(&spec.Type, corev1.ServiceTypeClusterIP)
	if spec.ClusterIP != "" && len(spec.ClusterIPs) == 0 {
		spec.ClusterIPs = []string{spec.ClusterIP}
	}
	for i := range spec.Ports {
		setDefault(&spec.Ports[i].Protocol, corev1.ProtocolTCP)
		if t := spec.Ports[i].TargetPort; t == intstr.FromInt32(0) || t == intstr.FromString("") {
			spec.Ports[i].TargetPort = intstr.FromInt32(spec.Ports[i].Port)
		}
	}
	defaultAffinity(spec)
	if reachableFromOutside(spec) {
		setDefault(&spec.ExternalTrafficPolicy, corev1.ServiceExternalTrafficPolicyCluster)
	}
	if spec.InternalTrafficPolicy == nil && spec.Type != corev1.ServiceTypeExternalName {
		spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyCluster)
	}
	if spec.Type == corev1.ServiceTypeLoadBalancer {
		for i := range svc.Status.LoadBalancer.Ingress {
			if in := &svc.Status.LoadBalancer.Ingress[i]; in.IP != "" && in.IPMode == nil {
				in.IPMode = new(corev1.LoadBalancerIPModeVIP)
			}
		}
	}
}

func defaultAffinity(spec *corev1.ServiceSpec) {
	setDefault(&spec.SessionAffinity, corev1.ServiceAffinityNone)
	switch spec.SessionAffinity {
	case corev1.ServiceAffinityNone:
		spec.SessionAffinityConfig = nil
	case corev1.ServiceAffinityClientIP:
		if c := spec.SessionAffinityConfig; c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil {
			spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
				ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(corev1.DefaultClientIPServiceAffinitySeconds)},
			}
		}
	}
}

// reachableFromOutside reports whether a Service has an external traffic policy.
func reachableFromOutside(spec *corev1.ServiceSpec) bool {
	switch spec.Type {
	case corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort:
		return true
	case corev1.ServiceTypeClusterIP:
		return len(spec.ExternalIPs) > 0
	}
	return false
}

func defaultSlice(slice *discoveryv1.EndpointSlice) {
	defaultMeta(&slice.ObjectMeta)
	for i := range slice.Ports {
		if slice.Ports[i].Name == nil {
			slice.Ports[i].Name = new("")
		}
		if slice.Ports[i].Protocol == nil {
			slice.Ports[i].Protocol = new(corev1.ProtocolTCP)
		}
	}
}

func setDefault[T comparable](field *T, value T) {
	var unset T
	if *field == unset {
		*field = value
	}
}
