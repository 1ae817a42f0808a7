package manifest

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	discoveryv1beta1 "k8s.io/api/discovery/v1beta1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/usherproxy/usher/config/strict"
	"github.com/usherproxy/usher/config/translate"
)

// v1beta1 is the version of slices before v1.
const v1beta1 = discoveryv1.GroupName + "/v1beta1"

// decodeSlice reads an EndpointSlice of v1 or v1beta1.
func decodeSlice(value []byte, apiVersion string) (*discoveryv1.EndpointSlice, []error) {
	if apiVersion != v1beta1 {
		return decode(value, defaultSlice, validateSlice)
	}
	var old discoveryv1beta1.EndpointSlice
	errs, decoded := strict.Decode(value, &old)
	if !decoded {
		return nil, errs
	}
	// The rest has the same form in v1. The node and the zone in the topology become fields, as in API servers and
	// kube-proxies that supported both.
	slice := new(discoveryv1.EndpointSlice)
	errs = append(errs, strict.DecodePart(value, slice)...)
	for i, e := range old.Endpoints {
		now := &slice.Endpoints[i]
		for key, value := range e.Topology {
			switch {
			case key == corev1.LabelTopologyZone:
				now.Zone = &value
			case key != corev1.LabelHostname:
				if now.DeprecatedTopology == nil {
					now.DeprecatedTopology = map[string]string{}
				}
				now.DeprecatedTopology[key] = value
			case now.NodeName == nil:
				now.NodeName = &value
			}
		}
	}
	defaultSlice(slice)
	return slice, append(errs, translate.SumUp(validateSlice(slice))...)
}

// warnSlice returns warnings about misleading parts of a valid slice.
func warnSlice(slice *discoveryv1.EndpointSlice, apiVersion string, place Diagnostic) (out []Diagnostic) {
	warn := func(format string, args ...any) { out = append(out, place.with(fmt.Errorf(format, args...))) }
	if apiVersion == v1beta1 {
		warn("apiVersion: %s: accepted, but removed in Kubernetes 1.25; use %s", apiVersion, discoveryv1.SchemeGroupVersion)
	}
	var several []int // endpoints
	for i, e := range slice.Endpoints {
		if len(e.Addresses) > 1 {
			several = append(several, i)
		}
	}
	if len(several) > 0 {
		more := ""
		if n := len(several) - 1; n > 0 {
			more = fmt.Sprintf("; and %d more of this kind", n)
		}
		i := several[0]
		warn("%s: %d addresses, only the first is used; list each address as a separate endpoint%s",
			field.NewPath("endpoints").Index(i).Child("addresses"), len(slice.Endpoints[i].Addresses), more)
	}
	return out
}
