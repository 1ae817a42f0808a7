package kube

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/translate"
)

// compute returns the marked Services that have changed.
func (s *Source) compute(ctx context.Context) (changed []config.Service) {
	if s.lookNow.Swap(false) {
		s.lookAtNode()
	}
	names := s.store.Take()
	if s.store.Prepare(names) {
		s.labels.watch(ctx)
	}
	for _, r := range s.store.Compute(names, s.labels.ready()) {
		s.logProblems(&r)
		if !r.Changed {
			continue
		}
		changed = append(changed, r.Model)
		if r.Model.Gone() {
			s.triggers.forget(r.Model.Name)
		} else {
			s.triggers.note(r.Model.Name, r.Slices)
		}
	}
	return changed
}

func (s *Source) slicesOf(name types.NamespacedName) []*discoveryv1.EndpointSlice {
	// The index exists, so there is no error.
	objects, _ := s.slices.GetIndexer().ByIndex(byService, name.String())
	list := make([]*discoveryv1.EndpointSlice, len(objects))
	for i, object := range objects {
		list[i] = object.(*discoveryv1.EndpointSlice)
	}
	return list
}

// logProblems logs a Service's new problems, and those whose count has at least doubled since they were last logged. It
// passes the same problems to OnProblems, and all current ones to Reports.
func (s *Source) logProblems(r *translate.Result) {
	name := r.Model.Name
	all := map[string]int{}
	var fresh []translate.Problem
	var reports []config.Report
	for _, p := range r.Problems {
		gist := p.Gist()
		logged, known := s.problems[name][gist]
		if !known || p.Count >= 2*max(logged, 1) {
			fresh = append(fresh, p)
			logged = p.Count
		}
		all[gist] = logged
		reports = append(reports, config.Report{Object: p.Kind + " " + p.Name.String(), Service: name, Reason: "PartNotServed", Message: p.Cause().Error()})
	}
	for _, m := range translate.Misnamed(r.Model, r.Slices) {
		reports = append(reports, config.Report{Object: "EndpointSlice " + m.Slice.Namespace + "/" + m.Slice.Name, Service: name, Reason: "PortNameDiffers", Message: m.Err.Error(), Served: true})
	}
	s.options.Reports.Set(name.String(), time.Now(), reports)
	if s.problems[name] = all; len(all) == 0 {
		delete(s.problems, name)
	}
	fresh = slices.DeleteFunc(fresh, func(translate.Problem) bool { return !s.words.Allow(name.Namespace, time.Now()) })
	for _, p := range fresh {
		s.options.Log.WithField("service", name.String()).WithError(p).Error("Part of a Service is not served")
	}
	if len(fresh) > 0 && s.options.OnProblems != nil {
		s.options.OnProblems(name, fresh)
	}
}

// triggers records when the causes of changed endpoints happened. The EndpointSlice controller writes that time into an
// annotation, for the latency that kube-proxy calls network programming.
type triggers struct {
	latest map[types.NamespacedName]time.Time // the latest recorded time for each Service
	fresh  []time.Time                        // recorded since the last report
}

// note records the newest trigger among slices, if it is newer than the last one.
func (t *triggers) note(service types.NamespacedName, slices []*discoveryv1.EndpointSlice) {
	newest := t.latest[service]
	for _, s := range slices {
		at, err := time.Parse(time.RFC3339Nano, s.Annotations[corev1.EndpointsLastChangeTriggerTime])
		if err == nil && at.After(newest) {
			newest = at
		}
	}
	if newest.After(t.latest[service]) {
		t.latest[service] = newest
		t.fresh = append(t.fresh, newest)
	}
}

func (t *triggers) forget(service types.NamespacedName) { delete(t.latest, service) }

// report passes on the time since each fresh trigger, unless first is set. Triggers found at the start are older, and
// do not show usher's latency.
func (t *triggers) report(first bool, to func(time.Duration)) {
	if !first && to != nil {
		for _, at := range t.fresh {
			to(time.Since(at))
		}
	}
	t.fresh = t.fresh[:0]
}
