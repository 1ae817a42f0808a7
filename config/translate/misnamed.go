package translate

import (
	"fmt"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/usherproxy/usher/config"
)

// Misnamed returns an error if none of a slice's ports has the name of one of the
// Service's: the Service will refuse all connections, and nothing else says why.
func Misnamed(svc config.Service, slice *discoveryv1.EndpointSlice) error {
	name := func(p discoveryv1.EndpointPort) string {
		if p.Name == nil {
			return ""
		}
		return *p.Name
	}
	var names []string
	for _, sp := range svc.Ports {
		names = append(names, fmt.Sprintf("%q", sp.ID.Port))
		if slices.ContainsFunc(slice.Ports, func(p discoveryv1.EndpointPort) bool { return name(p) == sp.ID.Port }) {
			return nil
		}
	}
	if len(slice.Ports) == 0 || len(names) == 0 {
		return nil
	}
	return fmt.Errorf("ports[0].name: %q: Service %s has no port of that name, only %s", name(slice.Ports[0]), svc.Name, strings.Join(slices.Compact(names), ", "))
}
