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

// Misnamed returns, for each service port without endpoints, a slice of its family if no slice has a port number for
// it. The slices' ports have other names or no number, or there are none. Such a service port refuses all connections,
// and no other message gives the reason. Slices without ports and endpoints do not count.
func Misnamed(svc config.Service, mine []*discoveryv1.EndpointSlice) (found []Mismatch) {
	var offers map[config.Family]*offer // computed for the first port without endpoints
	for i := range svc.Ports {
		port := &svc.Ports[i]
		if len(port.Endpoints) > 0 {
			continue
		}
		if offers == nil {
			offers = offersOf(mine)
		}
		if o := offers[port.ID.Family]; o != nil && !o.numbered[port.ID.Port] {
			found = append(found, Mismatch{o.slice, o.mismatch(svc.Name, port.ID.Port)})
		}
	}
	return found
}

// offer describes the ports of all slices of one family. Its maps avoid searches: a Service and a slice may each have
// thousands of ports.
type offer struct {
	numbered map[string]bool            // names of ports with a number
	slice    *discoveryv1.EndpointSlice // the last one by name, for the message
	names    map[string]int             // of the slice's ports, with the first index
	listed   string                     // the names, abbreviated
}

// offersOf returns the offer of each family that has a slice with ports or endpoints.
func offersOf(mine []*discoveryv1.EndpointSlice) map[config.Family]*offer {
	offers := map[config.Family]*offer{}
	for _, s := range byName(mine) {
		family, ok := familyOf(s.AddressType)
		if !ok || len(s.Endpoints)+len(s.Ports) == 0 {
			continue // the empty slice of a Service without Pods
		}
		o := offers[family]
		if o == nil {
			o = &offer{numbered: map[string]bool{}}
			offers[family] = o
		}
		for _, p := range s.Ports {
			if value(p.Port) != 0 {
				o.numbered[value(p.Name)] = true
			}
		}
		o.slice = s
	}
	for _, o := range offers {
		o.names = map[string]int{}
		for i, p := range slices.Backward(o.slice.Ports) {
			o.names[value(p.Name)] = i
		}
		o.listed = listed(o.slice.Ports)
	}
	return offers
}

// listed returns the names of the first ports, and how many more there are.
func listed(ports []discoveryv1.EndpointPort) string {
	const most = 10
	var names []string
	for _, p := range ports[:min(most, len(ports))] {
		names = append(names, fmt.Sprintf("%q", value(p.Name)))
	}
	if n := len(ports) - most; n > 0 {
		names = append(names, fmt.Sprintf("and %d more", n))
	}
	return strings.Join(names, ", ")
}

// mismatch returns why o's slice has no port number for the port of that name.
func (o *offer) mismatch(service types.NamespacedName, name string) error {
	owner := "Service " + service.String()
	i, named := o.names[name]
	switch {
	case named:
		return fmt.Errorf("ports[%d].port: null: port %q of %s has no endpoints; must be a number", i, name, owner)
	case len(o.slice.Ports) == 0:
		return fmt.Errorf("ports: null: port %q of %s has no endpoints; must have a port of that name", name, owner)
	}
	return fmt.Errorf("ports: %s: no port is named %q, so that port of %s has no endpoints", o.listed, name, owner)
}
