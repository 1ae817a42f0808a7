package translate

import (
	"fmt"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
)

// Mismatch is a slice whose endpoints are missing from a service port.
type Mismatch struct {
	Slice *discoveryv1.EndpointSlice
	Err   error // names the field, the ports of the slice and the port of the Service
}

// Misnamed returns, for each service port without endpoints, a slice that has ports or endpoints but no port number for
// it: ports of other names, none, or no number. Such a port refuses all connections, and no other message gives the
// reason.
func Misnamed(svc config.Service, mine []*discoveryv1.EndpointSlice) (found []Mismatch) {
	for _, port := range svc.Ports {
		if len(port.Endpoints) > 0 {
			continue
		}
		matches := func(s *discoveryv1.EndpointSlice) bool {
			return slices.ContainsFunc(s.Ports, func(p discoveryv1.EndpointPort) bool { return value(p.Name) == port.ID.Port && value(p.Port) != 0 })
		}
		var first *discoveryv1.EndpointSlice
		for _, s := range mine {
			if family, ok := familyOf(s.AddressType); !ok || family != port.ID.Family || len(s.Endpoints)+len(s.Ports) == 0 {
				continue // the empty slice of a Service without Pods
			}
			if first = s; matches(s) {
				break
			}
		}
		if first != nil && !matches(first) {
			found = append(found, Mismatch{first, mismatch(first, svc.Name, port.ID.Port)})
		}
	}
	return found
}

// mismatch returns why s has no port of that name.
func mismatch(s *discoveryv1.EndpointSlice, service types.NamespacedName, name string) error {
	owner := "Service " + service.String()
	var there []string
	for i, p := range s.Ports {
		if value(p.Name) == name {
			return fmt.Errorf("ports[%d].port: null: port %q of %s has no endpoints; must be a number", i, name, owner)
		}
		there = append(there, fmt.Sprintf("%q", value(p.Name)))
	}
	if len(there) == 0 {
		return fmt.Errorf("ports: null: port %q of %s has no endpoints; must have a port of that name", name, owner)
	}
	const most = 10
	if n := len(there) - most; n > 0 {
		there = append(there[:most], fmt.Sprintf("and %d more", n))
	}
	return fmt.Errorf("ports: %s: no port is named %q, so that port of %s has no endpoints", strings.Join(there, ", "), name, owner)
}
