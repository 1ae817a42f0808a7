//lint:file-ignore SA1019 Endpoints are deprecated, but some clusters and manifests still have them.

package manifest

import (
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"
)

// The controllers that write EndpointSlices, as in the label endpointslice.kubernetes.io/managed-by.
const (
	sliceController  = "endpointslice-controller.k8s.io"
	mirrorController = "endpointslicemirroring-controller.k8s.io"
)

// leaderAnnotation marks Endpoints that are only a lock for leader election, without endpoints.
const leaderAnnotation = "control-plane.alpha.kubernetes.io/leader"

// decodeEndpoints reads an Endpoints object and returns the equivalent slices.
func decodeEndpoints(value []byte) ([]*discoveryv1.EndpointSlice, []error) {
	endpoints, errs := decode(value, defaultEndpoints, validateEndpoints)
	if len(errs) > 0 {
		return nil, errs
	}
	return mirror(endpoints), nil
}

func defaultEndpoints(endpoints *corev1.Endpoints) {
	defaultMeta(&endpoints.ObjectMeta)
	for i := range endpoints.Subsets {
		ports := endpoints.Subsets[i].Ports
		for j := range ports {
			setDefault(&ports[j].Protocol, corev1.ProtocolTCP)
		}
	}
}

// mirror returns the EndpointSlices that Kubernetes makes of an Endpoints object: one for each subset and IP family.
// Their names, such as "web:subsets[0]", contain the source and are invalid for real slices. The result is nil only if
// Kubernetes does not mirror the object.
func mirror(endpoints *corev1.Endpoints) []*discoveryv1.EndpointSlice {
	if endpoints.Labels[discoveryv1.LabelSkipMirror] == "true" {
		return nil
	}
	if _, lock := endpoints.Annotations[leaderAnnotation]; lock {
		return nil
	}
	out := []*discoveryv1.EndpointSlice{}
	for i := range endpoints.Subsets {
		for _, family := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
			if s := mirrorSubset(endpoints, i, family); len(s.Endpoints) > 0 {
				out = append(out, s)
			}
		}
	}
	return out
}

// mirroredFrom returns the field of an Endpoints object from which the slice of that name was made.
func mirroredFrom(name string) string {
	_, subset, _ := strings.Cut(name, ":")
	return subset
}

func mirrorSubset(endpoints *corev1.Endpoints, i int, family discoveryv1.AddressType) *discoveryv1.EndpointSlice {
	subset := &endpoints.Subsets[i]
	labels := maps.Clone(endpoints.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[discoveryv1.LabelServiceName] = endpoints.Name
	labels[discoveryv1.LabelManagedBy] = mirrorController
	out := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: endpoints.Namespace,
			Name:      fmt.Sprintf("%s:subsets[%d]", endpoints.Name, i),
			Labels:    labels,
		},
		AddressType: family,
	}
	for _, p := range subset.Ports {
		out.Ports = append(out.Ports, discoveryv1.EndpointPort{
			Name: &p.Name, Port: &p.Port, Protocol: &p.Protocol, AppProtocol: p.AppProtocol,
		})
	}
	add := func(addresses []corev1.EndpointAddress, ready bool) {
		for _, a := range addresses {
			if netutils.IsIPv6String(a.IP) != (family == discoveryv1.AddressTypeIPv6) {
				continue
			}
			e := discoveryv1.Endpoint{
				Addresses:  []string{a.IP},
				Conditions: discoveryv1.EndpointConditions{Ready: &ready},
				TargetRef:  a.TargetRef,
				NodeName:   a.NodeName,
			}
			if a.Hostname != "" {
				e.Hostname = new(a.Hostname)
			}
			out.Endpoints = append(out.Endpoints, e)
		}
	}
	add(subset.Addresses, true)
	add(subset.NotReadyAddresses, false)
	return out
}

// validateEndpoints validates an Endpoints object with its defaults.
func validateEndpoints(e *corev1.Endpoints) field.ErrorList {
	errs := validation.ValidateObjectMeta(&e.ObjectMeta, true, validation.NameIsDNSSubdomain, field.NewPath("metadata"))
	for i := range e.Subsets {
		s, path := &e.Subsets[i], field.NewPath("subsets").Index(i)
		if len(s.Addresses) == 0 && len(s.NotReadyAddresses) == 0 {
			errs = append(errs, field.Required(path, "must specify `addresses` or `notReadyAddresses`"))
		}
		errs = append(errs, validateAddresses(s.Addresses, path.Child("addresses"))...)
		errs = append(errs, validateAddresses(s.NotReadyAddresses, path.Child("notReadyAddresses"))...)
		for j := range s.Ports {
			errs = append(errs, validateSubsetPort(&s.Ports[j], len(s.Ports) > 1, path.Child("ports").Index(j))...)
		}
	}
	return accepted(&e.ObjectMeta, errs)
}

func validateAddresses(addresses []corev1.EndpointAddress, path *field.Path) (errs field.ErrorList) {
	for i := range addresses {
		a, path := &addresses[i], path.Index(i)
		errs = append(errs, validateEndpointIP(a.IP, path.Child("ip"), true)...)
		if a.Hostname != "" {
			errs = append(errs, invalid(path.Child("hostname"), a.Hostname, utilvalidation.IsDNS1123Label(a.Hostname))...)
		}
		errs = append(errs, optional(path, "nodeName", a.NodeName, isNodeName)...)
	}
	return errs
}

func validateSubsetPort(p *corev1.EndpointPort, named bool, path *field.Path) (errs field.ErrorList) {
	if p.Name != "" {
		errs = append(errs, invalid(path.Child("name"), p.Name, utilvalidation.IsDNS1123Label(p.Name))...)
	} else if named {
		errs = append(errs, field.Required(path.Child("name"), ""))
	}
	errs = append(errs, invalid(path.Child("port"), p.Port, utilvalidation.IsValidPortNum(int(p.Port)))...)
	errs = append(errs, oneOf(path.Child("protocol"), p.Protocol, protocols...)...)
	return append(errs, optional(path, "appProtocol", p.AppProtocol, utilvalidation.IsQualifiedName)...)
}
