package manifest

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/translate"
)

// translated is what was made of a Service, and of which objects. It is kept from
// one resolution to the next: objects are never changed once they have been read,
// so the same ones give the same again, but for the cluster IPs of other Services,
// which endpoints may not have.
type translated struct {
	service    *corev1.Service
	clusterIPs []netip.Addr

	made     bool // what follows is there
	slices   []*discoveryv1.EndpointSlice
	model    config.Service
	problems []translate.Problem
}

// translateAll makes the model of all services, anew only where something is
// another than last time.
func (r *resolver) translateAll(services []object, slicesOf map[types.NamespacedName][]object, out *resolution) {
	opts := r.opts
	opts.ClusterIPs = translate.ClusterIPs{}
	now := make(map[types.NamespacedName]*translated, len(services))
	moved := map[netip.Addr]bool{} // cluster IPs that came or went
	for _, o := range services {
		t := r.translated[o.name]
		if t == nil || t.service != o.service {
			t.addrs(moved)
			t = &translated{service: o.service, clusterIPs: translate.ClusterIPsOf(o.service, opts.ServiceProxyName)}
			t.addrs(moved)
		}
		now[o.name] = t
		opts.ClusterIPs.Add(t.clusterIPs)
	}
	for name, t := range r.translated {
		if now[name] == nil {
			t.addrs(moved)
		}
	}
	r.translated = now
	for _, o := range services {
		r.translate(now[o.name], o, current(slicesOf[o.name]), moved, opts, out)
	}
}

// addrs adds t's cluster IPs to set. t may be nil.
func (t *translated) addrs(set map[netip.Addr]bool) {
	if t == nil {
		return
	}
	for _, a := range t.clusterIPs {
		set[a] = true
	}
}

// holds reports whether t is what would be made of these slices.
func (t *translated) holds(mine []*discoveryv1.EndpointSlice, moved map[netip.Addr]bool) bool {
	if !t.made || !slices.Equal(t.slices, mine) {
		return false
	}
	if len(moved) == 0 {
		return true
	}
	for _, p := range t.model.Ports {
		for i := range p.Endpoints {
			if moved[p.Endpoints[i].Addr.Addr()] {
				return false
			}
		}
	}
	return len(t.problems) == 0 // one may be an endpoint at a cluster IP that is gone
}

// translate adds the model of one Service.
func (r *resolver) translate(t *translated, o object, from []object, moved map[netip.Addr]bool, opts translate.Options, out *resolution) {
	mine := make([]*discoveryv1.EndpointSlice, len(from))
	for i, s := range from {
		mine[i] = s.slices[0]
	}
	if !t.holds(mine, moved) {
		t.made, t.slices = true, mine
		t.model, t.problems = translate.Service(o.service, mine, r.node, opts)
		if r.discovery {
			var more []translate.Problem
			t.model.Discovery, more = translate.Discovery(o.service, mine, opts)
			t.problems = append(t.problems, more...)
		}
	}
	for _, p := range t.problems {
		place, err := o.place, p.Cause()
		if p.Kind == "EndpointSlice" {
			i := slices.IndexFunc(mine, func(s *discoveryv1.EndpointSlice) bool { return s.Name == p.Name.Name })
			place = from[i].place
			if from[i].kind == "Endpoints" {
				err = fmt.Errorf("%s: %w", mirroredFrom(p.Name.Name), err)
			}
		}
		out.errors = append(out.errors, place.with(err))
	}
	if !t.model.Gone() {
		out.services[t.model.Name] = t.model
	}
	if len(t.model.Ports) > 0 {
		out.warnings = append(out.warnings, misnamed(t.model, from)...)
	}
}
