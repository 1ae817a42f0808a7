package manifest

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/translate"
)

// resolver makes the model from the objects of all files. It remembers which
// Service had which addresses, so that they stay the same while it lives.
type resolver struct {
	nets      networks
	node      config.Node
	opts      translate.Options
	discovery bool // see Options

	// had is each Service as it was in the last resolution, with its cluster
	// IPs, and owners what it had.
	had    map[types.NamespacedName]addressed
	owners claims

	translated map[types.NamespacedName]*translated
}

// addressed is a Service with its cluster IPs, and the Service as it was read.
type addressed struct{ service, read *corev1.Service }

// resolution is the model, and what had to be left out of it.
type resolution struct {
	services         map[types.NamespacedName]config.Service
	errors, warnings []Diagnostic
}

// resolve makes the model of objects, which are in the order in which they take
// precedence.
func (r *resolver) resolve(objects []object) resolution {
	out := resolution{services: map[types.NamespacedName]config.Service{}}
	services, slicesOf := out.index(objects)
	services = r.address(services, &out)
	out.warnings = append(out.warnings, withoutService(services, slicesOf)...)

	r.translateAll(services, slicesOf, &out)
	return out
}

// index tells Services and the slices of each apart. Of an object that is
// defined more than once the first definition counts.
func (out *resolution) index(objects []object) ([]object, map[types.NamespacedName][]object) {
	var services []object
	slicesOf := map[types.NamespacedName][]object{}
	first := map[key]Diagnostic{}
	for _, o := range objects {
		if p, twice := first[o.key]; twice {
			out.errors = append(out.errors, o.place.with(fmt.Errorf("already defined in %s, document %d", p.File, p.Document)))
			continue
		}
		first[o.key] = o.place
		if o.service != nil {
			services = append(services, o)
			continue
		}
		for i := range o.slices {
			one := o
			one.slices = o.slices[i : i+1]
			name, ok := translate.ServiceOf(o.slices[i])
			if !ok {
				out.warnings = append(out.warnings, o.place.with(fmt.Errorf("metadata.labels[%s]: not given: these endpoints belong to no Service", discoveryv1.LabelServiceName)))
				continue
			}
			if o.slices[i].AddressType == discoveryv1.AddressTypeFQDN {
				out.warnings = append(out.warnings, o.place.with(errors.New("addressType: FQDN: ignored, as kube-proxy does: only IPv4 and IPv6 endpoints are served")))
			}
			slicesOf[name] = append(slicesOf[name], one)
		}
	}
	return services, slicesOf
}

// address returns services with their cluster IPs, without those that cannot
// have what they claim. In this order Services get what they ask for:
//
//  1. each what it had already: nothing good is taken away by a mistake in
//     another file;
//  2. each what it names, in order;
//  3. those of them that could not, what their last good version had;
//  4. the others a cluster IP that is left.
func (r *resolver) address(services []object, out *resolution) []object {
	type claimant struct {
		*object
		read   *corev1.Service // as it was read, if the object is what became of that
		wishes []wish
	}
	got := claims{}
	all := make([]claimant, len(services))
	for i := range services {
		c := claimant{object: &services[i], read: services[i].service}
		c.service = r.keep(*c.object)
		c.wishes = wishes(c.service)
		for _, w := range c.wishes {
			if r.owners[w.claim] == c.name {
				got[w.claim] = c.name
			}
		}
		all[i] = c
	}
	var good, late []claimant
	for _, c := range all {
		if err := got.grant(c.name, c.wishes); err != nil {
			out.errors = append(out.errors, c.place.with(err))
			late = append(late, c)
			continue
		}
		good = append(good, c)
	}
	for _, c := range late {
		c.read, c.service = nil, r.had[c.name].service
		if c.service != nil && got.grant(c.name, wishes(c.service)) == nil {
			good = append(good, c)
		}
	}

	can := make([]object, 0, len(good))
	r.had = make(map[types.NamespacedName]addressed, len(good))
	for _, c := range good {
		svc, err := r.allocate(c.service, got)
		if err != nil {
			out.errors = append(out.errors, c.place.with(err))
			continue
		}
		c.service = svc
		r.had[c.name] = addressed{svc, c.read}
		can = append(can, *c.object)
	}
	r.owners = got
	return can
}

// keep returns the Service of o with the cluster IPs that were allocated to it
// before, if it still wants them allocated.
func (r *resolver) keep(o object) *corev1.Service {
	old, svc := r.had[o.name].service, o.service
	if old != nil && r.had[o.name].read == svc {
		return old
	}
	if old == nil || !hasClusterIPs(svc) || len(svc.Spec.ClusterIPs) >= len(svc.Spec.IPFamilies) || !hasClusterIPs(old) {
		return svc
	}
	ips := slices.Clone(svc.Spec.ClusterIPs)
	for _, f := range svc.Spec.IPFamilies[len(ips):] {
		i := slices.IndexFunc(old.Spec.ClusterIPs, func(ip string) bool { return ipFamilyOf(ip) == f })
		if i < 0 {
			break // allocated later
		}
		ips = append(ips, old.Spec.ClusterIPs[i])
	}
	return withClusterIPs(svc, ips)
}

// allocate returns svc with a cluster IP for each family that it has none for.
func (r *resolver) allocate(svc *corev1.Service, got claims) (*corev1.Service, error) {
	if !hasClusterIPs(svc) || len(svc.Spec.ClusterIPs) >= len(svc.Spec.IPFamilies) {
		return svc, nil
	}
	name := types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}
	ips := slices.Clone(svc.Spec.ClusterIPs)
	for _, f := range svc.Spec.IPFamilies[len(ips):] {
		network := r.nets.of(familyOf(f))
		a, ok := allocate(network, name.String(), got.taken)
		if !ok {
			return nil, fmt.Errorf("spec.clusterIP: no address of the service CIDR %v is left", network)
		}
		got[claim{addr: a}] = name
		ips = append(ips, a.String())
	}
	return withClusterIPs(svc, ips), nil
}

// withClusterIPs returns a copy of svc that has these cluster IPs. The rest is
// shared with svc, which nobody changes.
func withClusterIPs(svc *corev1.Service, ips []string) *corev1.Service {
	if len(ips) == 0 {
		return svc
	}
	out := *svc
	out.Spec.ClusterIP, out.Spec.ClusterIPs = ips[0], ips
	return &out
}

// current returns which slices of a Service to use. What comes from an Endpoints
// object is left aside if there are slices from the controllers of a cluster:
// those hold the same endpoints, and know more of each.
func current(all []object) []object {
	byController := slices.ContainsFunc(all, func(o object) bool {
		manager := o.slices[0].Labels[discoveryv1.LabelManagedBy]
		return o.kind == "EndpointSlice" && (manager == sliceController || manager == mirrorController)
	})
	if !byController {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(o object) bool { return o.kind == "Endpoints" })
}

// withoutService warns of slices whose Service does not exist. They wait for it.
func withoutService(services []object, slicesOf map[types.NamespacedName][]object) []Diagnostic {
	known := map[types.NamespacedName]bool{}
	for _, o := range services {
		known[o.name] = true
	}
	var out []Diagnostic
	for name, slices := range slicesOf {
		for _, s := range slices {
			if !known[name] {
				out = append(out, s.place.with(fmt.Errorf("there is no Service %s for these endpoints", name)))
			}
		}
	}
	return sortDiagnostics(out)
}

// misnamed warns of slices none of whose ports has the name of one of the
// Service's: the Service will refuse all connections, and nothing says why.
func misnamed(svc config.Service, all []object) []Diagnostic {
	has := func(p discoveryv1.EndpointPort) bool {
		return slices.ContainsFunc(svc.Ports, func(sp config.ServicePort) bool { return p.Name != nil && sp.ID.Port == *p.Name })
	}
	var out []Diagnostic
	for _, o := range all {
		if ports := o.slices[0].Ports; len(ports) > 0 && !slices.ContainsFunc(ports, has) {
			out = append(out, o.place.with(fmt.Errorf("ports[0].name: %q: Service %s has no port of that name, only %s", *ports[0].Name, svc.Name, portNames(svc))))
		}
	}
	return out
}

func portNames(svc config.Service) string {
	var names []string
	for _, p := range svc.Ports {
		names = append(names, fmt.Sprintf("%q", p.ID.Port))
	}
	return strings.Join(slices.Compact(names), ", ")
}
