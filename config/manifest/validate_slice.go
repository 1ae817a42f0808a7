package manifest

import (
	"fmt"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"github.com/usherproxy/usher/config/translate"
)

// This file repeats an API server's validation of an EndpointSlice, with two differences. Loopback addresses are
// allowed, since manifests are for laptops, too. The port numbers of a slice are validated.

// The limits of the API.
const (
	maxSliceEndpoints = 1000
	maxSlicePorts     = 20000
	maxAddresses      = 100
	maxTopologyLabels = 16
	maxHints          = 8
)

// validateSlice validates an EndpointSlice with its defaults.
func validateSlice(s *discoveryv1.EndpointSlice) field.ErrorList {
	errs := validation.ValidateObjectMeta(&s.ObjectMeta, true, validation.NameIsDNSSubdomain, field.NewPath("metadata"))
	if path := field.NewPath("addressType"); s.AddressType == "" {
		errs = append(errs, field.Required(path, ""))
	} else {
		errs = append(errs, oneOf(path, s.AddressType, discoveryv1.AddressTypeFQDN, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6)...)
	}
	errs = append(errs, validateSlicePorts(s.Ports, field.NewPath("ports"))...)

	path := field.NewPath("endpoints")
	if len(s.Endpoints) > maxSliceEndpoints {
		return append(errs, field.TooMany(path, len(s.Endpoints), maxSliceEndpoints))
	}
	for i := range s.Endpoints {
		errs = append(errs, validateEndpoint(&s.Endpoints[i], s.AddressType, path.Index(i))...)
	}
	return accepted(&s.ObjectMeta, errs)
}

func validateSlicePorts(ports []discoveryv1.EndpointPort, path *field.Path) (errs field.ErrorList) {
	if len(ports) > maxSlicePorts {
		return field.ErrorList{field.TooMany(path, len(ports), maxSlicePorts)}
	}
	names := map[string]bool{}
	for i := range ports {
		p, path := &ports[i], path.Index(i)
		if *p.Name != "" {
			errs = append(errs, invalid(path.Child("name"), *p.Name, utilvalidation.IsDNS1123Label(*p.Name))...)
		}
		if names[*p.Name] {
			errs = append(errs, field.Duplicate(path.Child("name"), *p.Name))
		}
		names[*p.Name] = true
		errs = append(errs, oneOf(path.Child("protocol"), *p.Protocol, protocols...)...)
		if p.Port != nil {
			errs = append(errs, invalid(path.Child("port"), *p.Port, utilvalidation.IsValidPortNum(int(*p.Port)))...)
		}
		errs = append(errs, optional(path, "appProtocol", p.AppProtocol, utilvalidation.IsQualifiedName)...)
	}
	return errs
}

func validateEndpoint(e *discoveryv1.Endpoint, t discoveryv1.AddressType, path *field.Path) (errs field.ErrorList) {
	addresses := path.Child("addresses")
	switch {
	case len(e.Addresses) == 0:
		errs = append(errs, field.Required(addresses, "must contain at least 1 address"))
	case len(e.Addresses) > maxAddresses:
		return field.ErrorList{field.TooMany(addresses, len(e.Addresses), maxAddresses)}
	}
	for i, a := range e.Addresses {
		errs = append(errs, validateAddress(a, t, addresses.Index(i))...)
	}
	errs = append(errs, optional(path, "nodeName", e.NodeName, isNodeName)...)
	errs = append(errs, optional(path, "hostname", e.Hostname, utilvalidation.IsDNS1123Label)...)
	topology := path.Child("deprecatedTopology")
	if n := len(e.DeprecatedTopology); n > maxTopologyLabels {
		errs = append(errs, field.TooMany(topology, n, maxTopologyLabels))
	}
	errs = append(errs, metavalidation.ValidateLabels(e.DeprecatedTopology, topology)...)
	return append(errs, validateHints(e.Hints, path.Child("hints"))...)
}

func validateAddress(a string, t discoveryv1.AddressType, path *field.Path) field.ErrorList {
	switch t {
	case discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6:
		errs := validateEndpointIP(a, path, true)
		if len(errs) == 0 && netutils.IsIPv6String(a) != (t == discoveryv1.AddressTypeIPv6) {
			errs = append(errs, field.Invalid(path, a, fmt.Sprintf("must be an %s address", t)))
		}
		return errs
	case discoveryv1.AddressTypeFQDN:
		return utilvalidation.IsFullyQualifiedDomainName(path, a)
	}
	return nil
}

// validateEndpointIP validates the address of an endpoint or an external IP. loopback allows a loopback address.
func validateEndpointIP(s string, path *field.Path, loopback bool) (errs field.ErrorList) {
	if errs := utilvalidation.IsValidIPForLegacyField(path, s, true, nil); len(errs) > 0 {
		return errs
	}
	a, _ := translate.ParseAddr(s)
	if detail := translate.SpecialAddress(a); detail != "" && !(loopback && a.IsLoopback()) {
		errs = append(errs, field.Invalid(path, s, detail))
	}
	return errs
}

func validateHints(h *discoveryv1.EndpointHints, path *field.Path) (errs field.ErrorList) {
	if h == nil {
		return nil
	}
	check := func(path *field.Path, names []string, valid func(string) []string) {
		if len(names) > maxHints {
			errs = append(errs, field.TooMany(path, len(names), maxHints))
			return
		}
		for i, n := range names {
			path := path.Index(i).Child("name")
			if slices.Contains(names[:i], n) {
				errs = append(errs, field.Duplicate(path, n))
			}
			errs = append(errs, invalid(path, n, valid(n))...)
		}
	}
	var zones, nodes []string
	for _, z := range h.ForZones {
		zones = append(zones, z.Name)
	}
	for _, n := range h.ForNodes {
		nodes = append(nodes, n.Name)
	}
	check(path.Child("forZones"), zones, utilvalidation.IsValidLabelValue)
	check(path.Child("forNodes"), nodes, isNodeName)
	return errs
}
