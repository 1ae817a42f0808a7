package manifest

import (
	"errors"
	"fmt"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/usherproxy/usher/config/translate"
)

func slicesIn(objects []*object) (all []*discoveryv1.EndpointSlice) {
	for _, o := range objects {
		all = append(all, o.slices...)
	}
	return all
}

// current returns the slices to use. It omits those from an Endpoints object if a cluster's controllers have written
// slices: these have the same endpoints, with more detail.
func (s *service) current() []*object {
	slices.SortFunc(s.slices, precedence)
	byController := slices.ContainsFunc(s.slices, func(o *object) bool {
		if o.kind == "Endpoints" {
			return false
		}
		manager := o.slices[0].Labels[discoveryv1.LabelManagedBy]
		return manager == sliceController || manager == mirrorController
	})
	if !byController {
		return s.slices
	}
	return slices.DeleteFunc(slices.Clone(s.slices), func(o *object) bool { return o.kind == "Endpoints" })
}

// diagnose sets the errors and warnings of a Service, and forgets the Service if it no longer has any objects.
func (r *resolver) diagnose(n name, s *service) {
	delete(r.troubled, n)
	if s.object == nil && len(s.slices) == 0 {
		delete(r.services, n)
		return
	}
	s.errors, s.warnings = nil, nil
	model := r.store.Model(n)
	if s.reason != nil {
		s.errors = append(s.errors, finding{s.object, s.reason})
	}
	if svc := s.had.service; svc != nil {
		for _, who := range translate.WeightsOfNobody(svc, model) {
			s.warnings = append(s.warnings, finding{s.object, fmt.Errorf("metadata.annotations[%s]: %s is not an endpoint of the Service", translate.AnnotationWeight, who)})
		}
	}
	used := s.current()
	for _, p := range r.store.Problems(n) {
		s.errors = append(s.errors, s.finding(p, used))
	}
	for _, o := range s.slices {
		warn := func(err error) { s.warnings = append(s.warnings, finding{o, err}) }
		for _, slice := range o.slices {
			if n == (name{}) {
				warn(fmt.Errorf("metadata.labels[%s]: missing; these endpoints belong to no Service", discoveryv1.LabelServiceName))
				continue
			}
			if slice.AddressType == discoveryv1.AddressTypeFQDN {
				warn(errors.New("addressType: FQDN: ignored, as in kube-proxy; only IPv4 and IPv6 endpoints are served"))
			}
			if s.had.service == nil && s.object == nil { // its Service may come later
				warn(fmt.Errorf("these endpoints belong to Service %s, which does not exist", n))
			}
		}
	}
	for _, m := range translate.Misnamed(model, slicesIn(used)) {
		o := used[slices.IndexFunc(used, func(o *object) bool { return slices.Contains(o.slices, m.Slice) })]
		s.warnings = append(s.warnings, finding{o, m.Err})
	}
	if svc := s.had.service; svc != nil && len(s.slices) == 0 && len(svc.Spec.Selector) > 0 && model.Ports != nil {
		s.warnings = append(s.warnings, finding{s.object, fmt.Errorf("spec.selector: no EndpointSlice or Endpoints for this Service; manifests need them because no controller creates them; add an EndpointSlice with the label %s: %s", discoveryv1.LabelServiceName, svc.Name)})
	}
	if len(s.errors)+len(s.warnings) > 0 {
		r.troubled[n] = true
	}
}

// finding returns the finding for a problem, with its object.
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

// diagnostics returns the errors for all parts omitted from the model, and the warnings.
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
