package manifest

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/translate"
)

// move takes the cluster IPs of these Services for those they had, and adds to the
// names all that have an endpoint at one that came or went: no endpoint may have one.
func (r *resolver) move(names map[name]bool) {
	moved := map[netip.Addr]bool{}
	for n := range names {
		s := r.services[n]
		var now []netip.Addr
		if s.had.service != nil {
			now = translate.ClusterIPsOf(s.had.service, r.opts.ServiceProxyName)
		}
		if slices.Equal(s.clusterIPs, now) {
			continue
		}
		for _, a := range slices.Concat(s.clusterIPs, now) {
			moved[a] = true
		}
		r.opts.ClusterIPs.Remove(s.clusterIPs)
		r.opts.ClusterIPs.Add(now)
		s.clusterIPs = now
	}
	if len(moved) == 0 {
		return
	}
	for n, s := range r.services {
		if s.made != nil && slices.ContainsFunc(s.endpoints, func(a netip.Addr) bool { return moved[a] }) {
			s.made, names[n] = nil, true
		}
	}
}

// translate makes the model of a Service anew if it has to be. It reports whether
// that is another than before. Several Services may be translated at once.
func (r *resolver) translate(s *service) (changed bool) {
	svc, before := s.had.service, s.model
	if svc != nil && s.made == svc {
		return false
	}
	s.made, s.model, s.problems = svc, config.Service{Name: before.Name}, nil
	if svc != nil {
		mine := slicesIn(s.current())
		s.endpoints = addressesOf(mine)
		s.model, s.problems = translate.Service(svc, mine, r.node, r.opts)
		if r.discovery {
			var more []translate.Problem
			s.model.Discovery, more = translate.Discovery(svc, mine, r.opts)
			s.problems = append(s.problems, more...)
		}
	}
	if s.model.Gone() {
		s.model = config.Service{Name: before.Name}
	}
	return !equal(before, s.model)
}

// slicesIn returns the slices of objects.
func slicesIn(objects []*object) (all []*discoveryv1.EndpointSlice) {
	for _, o := range objects {
		all = append(all, o.slices...)
	}
	return all
}

// addressesOf returns the addresses of all endpoints.
func addressesOf(all []*discoveryv1.EndpointSlice) (out []netip.Addr) {
	for _, slice := range all {
		for i := range slice.Endpoints {
			if all := slice.Endpoints[i].Addresses; len(all) > 0 { // consumers use no other
				a, _ := translate.ParseAddr(all[0])
				out = append(out, a)
			}
		}
	}
	return slices.Clip(out)
}

// current returns the slices to use. What comes from an Endpoints
// object is left aside if there are slices from the controllers of a cluster:
// those hold the same endpoints, and know more of each.
func (s *service) current() []*object {
	slices.SortFunc(s.slices, precedence)
	byController := slices.ContainsFunc(s.slices, func(o *object) bool {
		manager := o.slices[0].Labels[discoveryv1.LabelManagedBy]
		return o.kind == "EndpointSlice" && (manager == sliceController || manager == mirrorController)
	})
	if !byController {
		return s.slices
	}
	return slices.DeleteFunc(slices.Clone(s.slices), func(o *object) bool { return o.kind == "Endpoints" })
}

// diagnose notes what there is to tell about a Service, and forgets it if there is nothing
// of it any more.
func (r *resolver) diagnose(n name, s *service) {
	delete(r.troubled, n)
	if s.object == nil && len(s.slices) == 0 {
		delete(r.services, n)
		return
	}
	s.errors, s.warnings = nil, nil
	if s.reason != nil {
		s.errors = append(s.errors, finding{s.object, s.reason})
	}
	if svc := s.had.service; svc != nil {
		for _, who := range translate.WeightsOfNobody(svc, s.model) {
			s.warnings = append(s.warnings, finding{s.object, fmt.Errorf("metadata.annotations[%s]: %s is no endpoint of the Service", translate.AnnotationWeight, who)})
		}
	}
	used := s.current()
	for _, p := range s.problems {
		if p.Removed() {
			s.warnings = append(s.warnings, s.finding(p, used))
			continue
		}
		s.errors = append(s.errors, s.finding(p, used))
	}
	for _, o := range s.slices {
		warn := func(err error) { s.warnings = append(s.warnings, finding{o, err}) }
		for _, slice := range o.slices {
			if n == (name{}) {
				warn(fmt.Errorf("metadata.labels[%s]: not given: these endpoints belong to no Service", discoveryv1.LabelServiceName))
				continue
			}
			if slice.AddressType == discoveryv1.AddressTypeFQDN {
				warn(errors.New("addressType: FQDN: ignored, as kube-proxy does: only IPv4 and IPv6 endpoints are served"))
			}
			if s.had.service == nil { // they wait for it
				warn(fmt.Errorf("there is no Service %s for these endpoints", n))
			}
		}
	}
	for _, m := range translate.Misnamed(s.model, slicesIn(used)) {
		o := used[slices.IndexFunc(used, func(o *object) bool { return slices.Contains(o.slices, m.Slice) })]
		s.warnings = append(s.warnings, finding{o, m.Err})
	}
	if svc := s.had.service; svc != nil && len(s.slices) == 0 && len(svc.Spec.Selector) > 0 && s.model.Ports != nil {
		s.warnings = append(s.warnings, finding{s.object, fmt.Errorf("spec.selector: no EndpointSlice or Endpoints belongs to this Service, and from files no controller makes them of Pods; add an EndpointSlice with the label %s: %s", discoveryv1.LabelServiceName, svc.Name)})
	}
	if len(s.errors)+len(s.warnings) > 0 {
		r.troubled[n] = true
	}
}

// finding says which object a problem is about.
func (s *service) finding(p translate.Problem, used []*object) finding {
	if p.Kind != "EndpointSlice" {
		return finding{s.object, p.Cause()}
	}
	named := func(slice *discoveryv1.EndpointSlice) bool { return slice.Name == p.Name.Name }
	o := used[slices.IndexFunc(used, func(o *object) bool { return slices.ContainsFunc(o.slices, named) })]
	if o.kind == "Endpoints" {
		return finding{o, fmt.Errorf("%s: %w", mirroredFrom(p.Name.Name), p.Cause())}
	}
	return finding{o, p.Cause()}
}

// diagnostics returns all that had to be left out of the model, or is to be told of it.
func (r *resolver) diagnostics() (errs, warnings []Diagnostic) {
	for k := range r.twice {
		all := r.defined[k]
		for _, o := range all[1:] {
			errs = append(errs, o.place.with(fmt.Errorf("%w in %s, document %d", errTwice, all[0].place.File, all[0].place.Document)))
		}
	}
	for n := range r.troubled {
		s := r.services[n]
		for _, f := range s.errors {
			errs = append(errs, f.about.place.with(f.err).about(n))
		}
		for _, f := range s.warnings {
			warnings = append(warnings, f.about.place.with(f.err).about(n))
		}
	}
	return errs, warnings
}
