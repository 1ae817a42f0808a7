package manifest

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"github.com/usherproxy/usher/config/translate"
)

// This file repeats an API server's validation of a Service, which cannot be imported without all of Kubernetes. The
// rules, fields and messages are the same, and so are the helpers, where they are public.

var protocols = []corev1.Protocol{corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP}

// validateService validates a Service with its defaults, and fills in its families if it is valid.
func (n networks) validateService(svc *corev1.Service) field.ErrorList {
	spec, path := &svc.Spec, field.NewPath("spec")
	errs := validation.ValidateObjectMeta(&svc.ObjectMeta, true, validation.NameIsDNSLabel, field.NewPath("metadata"))
	errs = append(errs, validateType(spec, path)...)
	errs = append(errs, validatePorts(spec, path.Child("ports"))...)
	errs = append(errs, metavalidation.ValidateLabels(spec.Selector, path.Child("selector"))...)
	errs = append(errs, validateAffinity(spec, path)...)
	if spec.Type != corev1.ServiceTypeExternalName {
		errs = append(errs, validateClusterIPs(spec, path)...)
		errs = append(errs, validateFamilies(spec, path)...)
	}
	for i, ip := range spec.ExternalIPs {
		errs = append(errs, validateEndpointIP(ip, path.Child("externalIPs").Index(i), false)...)
	}
	errs = append(errs, validateSourceRanges(svc)...)
	errs = append(errs, validateLoadBalancer(svc)...)
	errs = append(errs, validatePolicies(spec, path)...)
	if errs = accepted(&svc.ObjectMeta, errs); len(errs) == 0 {
		errs = n.chooseFamilies(svc)
	}
	return errs
}

// accepted omits errors about the form of addresses (leading zeros, IPv4-mapped IPv6) in an object with a UID. An API
// server has stored it: addresses that older ones accepted stay valid, and kube-proxy serves them.
func accepted(meta *metav1.ObjectMeta, errs field.ErrorList) field.ErrorList {
	if meta.UID == "" {
		return errs
	}
	return slices.DeleteFunc(errs, func(e *field.Error) bool {
		value, _ := e.BadValue.(string)
		return e.Origin == "format=ip-sloppy" && netutils.ParseIPSloppy(value) != nil
	})
}

// headless reports whether a Service requests no cluster IP.
func headless(spec *corev1.ServiceSpec) bool {
	return len(spec.ClusterIPs) == 1 && spec.ClusterIPs[0] == corev1.ClusterIPNone
}

func validateType(spec *corev1.ServiceSpec, path *field.Path) (errs field.ErrorList) {
	switch spec.Type {
	case corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer:
		if headless(spec) {
			errs = append(errs, field.Invalid(path.Child("clusterIPs").Index(0), spec.ClusterIPs[0],
				fmt.Sprintf("may not be set to 'None' for %s services", spec.Type)))
		}
	case corev1.ServiceTypeExternalName:
		errs = append(errs, validateExternalName(spec, path)...)
	}
	return append(errs, oneOf(path.Child("type"), spec.Type,
		corev1.ServiceTypeClusterIP, corev1.ServiceTypeExternalName, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort)...)
}

func validateExternalName(spec *corev1.ServiceSpec, path *field.Path) (errs field.ErrorList) {
	forbidden := func(name string, set bool) {
		if set {
			errs = append(errs, field.Forbidden(path.Child(name), "may not be set for ExternalName services"))
		}
	}
	forbidden("clusterIPs", len(spec.ClusterIPs) > 0)
	forbidden("ipFamilies", len(spec.IPFamilies) > 0)
	forbidden("ipFamilyPolicy", spec.IPFamilyPolicy != nil)
	name := strings.TrimSuffix(spec.ExternalName, ".")
	if name == "" {
		return append(errs, field.Required(path.Child("externalName"), ""))
	}
	return append(errs, invalid(path.Child("externalName"), name, utilvalidation.IsDNS1123Subdomain(name))...)
}

// validatePorts validates the ports one by one and against each other.
func validatePorts(spec *corev1.ServiceSpec, path *field.Path) (errs field.ErrorList) {
	if len(spec.Ports) == 0 && !headless(spec) && spec.Type != corev1.ServiceTypeExternalName {
		errs = append(errs, field.Required(path, ""))
	}
	type number struct {
		protocol corev1.Protocol
		number   int32
	}
	names, ports, nodePorts := map[string]bool{}, map[number]bool{}, map[number]bool{}
	for i := range spec.Ports {
		p, path := &spec.Ports[i], path.Index(i)
		switch {
		case p.Name == "" && len(spec.Ports) > 1:
			errs = append(errs, field.Required(path.Child("name"), ""))
		case p.Name != "":
			errs = append(errs, invalid(path.Child("name"), p.Name, utilvalidation.IsDNS1123Label(p.Name))...)
			if names[p.Name] {
				errs = append(errs, field.Duplicate(path.Child("name"), p.Name))
			}
			names[p.Name] = true
		}
		errs = append(errs, validatePort(p, path)...)
		if spec.Type == corev1.ServiceTypeClusterIP && p.NodePort != 0 {
			errs = append(errs, field.Forbidden(path.Child("nodePort"), "may not be used when `type` is 'ClusterIP'"))
		}
		if n := (number{p.Protocol, p.Port}); ports[n] {
			errs = append(errs, field.Duplicate(path, fmt.Sprintf("%d/%s", p.Port, p.Protocol)))
		} else {
			ports[n] = true
		}
		if n := (number{p.Protocol, p.NodePort}); p.NodePort != 0 && nodePorts[n] {
			errs = append(errs, field.Duplicate(path.Child("nodePort"), p.NodePort))
		} else {
			nodePorts[n] = true
		}
	}
	return errs
}

func validatePort(p *corev1.ServicePort, path *field.Path) field.ErrorList {
	errs := invalid(path.Child("port"), p.Port, utilvalidation.IsValidPortNum(int(p.Port)))
	errs = append(errs, oneOf(path.Child("protocol"), p.Protocol, protocols...)...)
	if p.TargetPort.Type == intstr.String {
		errs = append(errs, invalid(path.Child("targetPort"), p.TargetPort.StrVal, utilvalidation.IsValidPortName(p.TargetPort.StrVal))...)
	} else if p.TargetPort.IntVal != p.Port { // otherwise it is the same error
		errs = append(errs, invalid(path.Child("targetPort"), p.TargetPort.IntVal, utilvalidation.IsValidPortNum(int(p.TargetPort.IntVal)))...)
	}
	if p.NodePort != 0 {
		errs = append(errs, invalid(path.Child("nodePort"), p.NodePort, utilvalidation.IsValidPortNum(int(p.NodePort)))...)
	}
	return append(errs, optional(path, "appProtocol", p.AppProtocol, utilvalidation.IsQualifiedName)...)
}

func validateAffinity(spec *corev1.ServiceSpec, path *field.Path) field.ErrorList {
	if spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		const longest = 86400 // a day
		if t := *spec.SessionAffinityConfig.ClientIP.TimeoutSeconds; t <= 0 || t > longest {
			return field.ErrorList{field.Invalid(path.Child("sessionAffinityConfig", "clientIP", "timeoutSeconds"), t,
				fmt.Sprintf("must be greater than 0 and less than or equal to %d", longest))}
		}
	}
	return oneOf(path.Child("sessionAffinity"), spec.SessionAffinity, corev1.ServiceAffinityClientIP, corev1.ServiceAffinityNone)
}

func validateClusterIPs(spec *corev1.ServiceSpec, path *field.Path) (errs field.ErrorList) {
	all, path := spec.ClusterIPs, path.Child("clusterIPs")
	switch {
	case spec.ClusterIP == "" && len(all) > 0:
		errs = append(errs, field.Invalid(path, all, "must be empty when `clusterIP` is not specified"))
	case len(all) > 0 && all[0] != spec.ClusterIP:
		errs = append(errs, field.Invalid(path, all, "first value must match `clusterIP`"))
	}
	if len(all) > 2 {
		errs = append(errs, field.Invalid(path, all, "may only hold up to 2 values"))
	}
	families := map[corev1.IPFamily]bool{}
	for i, ip := range all {
		if i == 0 && ip == corev1.ClusterIPNone {
			if len(all) > 1 {
				errs = append(errs, field.Invalid(path, all, "'None' must be the first and only value"))
			}
			return errs
		}
		bad := utilvalidation.IsValidIPForLegacyField(path.Index(i), ip, true, nil)
		if errs = append(errs, bad...); len(bad) > 0 {
			continue
		}
		// An API server needs no such rule, since it knows its networks.
		a, _ := translate.ParseAddr(ip)
		if err := translate.Special(path.Index(i), a); err != nil {
			errs = append(errs, err)
		}
		f := ipFamilyOf(ip)
		if families[f] {
			errs = append(errs, field.Invalid(path, all, "may specify no more than one IP for each IP family"))
		}
		families[f] = true
		if i < len(spec.IPFamilies) && spec.IPFamilies[i] != f {
			errs = append(errs, field.Invalid(path.Index(i), ip,
				fmt.Sprintf("expected an %s value as indicated by `ipFamilies[%d]`", spec.IPFamilies[i], i)))
		}
	}
	return errs
}

func validateFamilies(spec *corev1.ServiceSpec, path *field.Path) (errs field.ErrorList) {
	seen := map[corev1.IPFamily]bool{}
	for i, f := range spec.IPFamilies {
		path := path.Child("ipFamilies").Index(i)
		errs = append(errs, oneOf(path, f, corev1.IPv4Protocol, corev1.IPv6Protocol)...)
		if seen[f] {
			errs = append(errs, field.Duplicate(path, f))
		}
		seen[f] = true
	}
	return append(errs, oneOfOptional(path, "ipFamilyPolicy", spec.IPFamilyPolicy,
		corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicyRequireDualStack, corev1.IPFamilyPolicySingleStack)...)
}

func validateSourceRanges(svc *corev1.Service) (errs field.ErrorList) {
	ranges, path := svc.Spec.LoadBalancerSourceRanges, field.NewPath("spec", "loadBalancerSourceRanges")
	if annotation, ok := svc.Annotations[corev1.AnnotationLoadBalancerSourceRangesKey]; ok && len(ranges) == 0 {
		path = field.NewPath("metadata", "annotations").Key(corev1.AnnotationLoadBalancerSourceRangesKey)
		if annotation = strings.TrimSpace(annotation); annotation != "" {
			ranges = strings.Split(annotation, ",")
		}
	}
	if len(ranges) > 0 && svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
		errs = append(errs, field.Forbidden(path, "may only be used when `type` is 'LoadBalancer'"))
	}
	for i, r := range ranges {
		errs = append(errs, utilvalidation.IsValidCIDRForLegacyField(path.Index(i), strings.TrimSpace(r), svc.UID == "", nil)...)
	}
	return errs
}

func validateLoadBalancer(svc *corev1.Service) (errs field.ErrorList) {
	spec, path := &svc.Spec, field.NewPath("spec")
	const only = "may only be used when `type` is 'LoadBalancer'"
	balanced := spec.Type == corev1.ServiceTypeLoadBalancer
	if spec.AllocateLoadBalancerNodePorts != nil && !balanced {
		errs = append(errs, field.Forbidden(path.Child("allocateLoadBalancerNodePorts"), only))
	}
	if balanced {
		errs = append(errs, optional(path, "loadBalancerClass", spec.LoadBalancerClass, utilvalidation.IsQualifiedName)...)
	} else if spec.LoadBalancerClass != nil {
		errs = append(errs, field.Forbidden(path.Child("loadBalancerClass"), only))
	}
	ingressPath := field.NewPath("status", "loadBalancer", "ingress")
	if !balanced && len(svc.Status.LoadBalancer.Ingress) > 0 {
		return append(errs, field.Forbidden(ingressPath, "may only be used when `spec.type` is 'LoadBalancer'"))
	}
	for i := range svc.Status.LoadBalancer.Ingress {
		errs = append(errs, validateIngress(&svc.Status.LoadBalancer.Ingress[i], ingressPath.Index(i))...)
	}
	return errs
}

func validateIngress(in *corev1.LoadBalancerIngress, path *field.Path) (errs field.ErrorList) {
	if in.IP != "" {
		errs = append(errs, utilvalidation.IsValidIPForLegacyField(path.Child("ip"), in.IP, true, nil)...)
	}
	if in.IPMode != nil && in.IP == "" {
		errs = append(errs, field.Forbidden(path.Child("ipMode"), "may not be specified when `ip` is not set"))
	} else {
		errs = append(errs, oneOfOptional(path, "ipMode", in.IPMode, corev1.LoadBalancerIPModeProxy, corev1.LoadBalancerIPModeVIP)...)
	}
	if in.Hostname != "" {
		errs = append(errs, invalid(path.Child("hostname"), in.Hostname, utilvalidation.IsDNS1123Subdomain(in.Hostname))...)
		if netutils.ParseIPSloppy(in.Hostname) != nil {
			errs = append(errs, field.Invalid(path.Child("hostname"), in.Hostname, "must be a DNS name, not an IP address"))
		}
	}
	return errs
}

// validatePolicies validates the traffic policies. One rule is missing: an API server allocates a missing
// healthCheckNodePort, so omitting it is no error.
func validatePolicies(spec *corev1.ServiceSpec, path *field.Path) (errs field.ErrorList) {
	external, outside := spec.ExternalTrafficPolicy, reachableFromOutside(spec)
	switch {
	case outside:
		errs = oneOf(path.Child("externalTrafficPolicy"), external, corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal)
	case external != "":
		errs = append(errs, field.Invalid(path.Child("externalTrafficPolicy"), external, "may only be set for externally-accessible services"))
	}

	if port := spec.HealthCheckNodePort; port != 0 {
		if spec.Type == corev1.ServiceTypeLoadBalancer && external == corev1.ServiceExternalTrafficPolicyLocal {
			errs = append(errs, invalid(path.Child("healthCheckNodePort"), port, utilvalidation.IsValidPortNum(int(port)))...)
		} else {
			errs = append(errs, field.Invalid(path.Child("healthCheckNodePort"), port,
				"may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"))
		}
	}

	errs = append(errs, oneOfOptional(path, "internalTrafficPolicy", spec.InternalTrafficPolicy,
		corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal)...)
	return append(errs, oneOfOptional(path, "trafficDistribution", spec.TrafficDistribution,
		corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameNode, corev1.ServiceTrafficDistributionPreferSameZone)...)
}

// oneOf checks that a value is one of the allowed ones.
func oneOf[T ~string](path *field.Path, value T, allowed ...T) field.ErrorList {
	if slices.Contains(allowed, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, value, allowed)}
}

// oneOfOptional checks the field of that name, if it is set.
func oneOfOptional[T ~string](path *field.Path, name string, value *T, allowed ...T) field.ErrorList {
	if value == nil {
		return nil
	}
	return oneOf(path.Child(name), *value, allowed...)
}

// invalid returns an error for each message of a helper that returns only messages.
func invalid(path *field.Path, value any, messages []string) (errs field.ErrorList) {
	for _, m := range messages {
		errs = append(errs, field.Invalid(path, value, m))
	}
	return errs
}

// optional checks the field of that name, if it is set, with a helper that returns only messages.
func optional(path *field.Path, name string, value *string, valid func(string) []string) field.ErrorList {
	if value == nil {
		return nil
	}
	return invalid(path.Child(name), *value, valid(*value))
}

func validateServiceCIDR(c *networkingv1.ServiceCIDR) field.ErrorList {
	errs := validation.ValidateObjectMeta(&c.ObjectMeta, false, validation.NameIsDNSSubdomain, field.NewPath("metadata"))
	all, path := c.Spec.CIDRs, field.NewPath("spec", "cidrs")
	dual, _ := netutils.IsDualStackCIDRStrings(all)
	switch {
	case len(all) == 0:
		return append(errs, field.Required(path, "at least one CIDR required"))
	case len(all) > 2:
		return append(errs, field.Invalid(path, all, "may only hold up to 2 values"))
	}
	for i, text := range all {
		errs = append(errs, utilvalidation.IsValidCIDR(path.Index(i), text)...)
	}
	if len(all) == 2 && !dual && len(errs) == 0 {
		errs = append(errs, field.Invalid(path, all, "may specify no more than one CIDR for each IP family, i.e. 192.168.0.0/24 and 2001:db8::/96"))
	}
	return errs
}

func isNodeName(name string) []string { return validation.NameIsDNSSubdomain(name, false) }
