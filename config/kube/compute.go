package kube

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/translate"
)

// compute returns the Services that are dirty and really changed.
func (s *Source) compute(ctx context.Context) (changed []config.Service) {
	names := s.takeDirty()
	for _, name := range names {
		s.claimClusterIPs(name)
		s.askForLabels(name)
	}
	s.labels.follow(ctx)
	for _, name := range names {
		if out, ok := s.computeOne(name); ok {
			changed = append(changed, out)
		}
	}
	return changed
}

// takeDirty returns what is dirty and forgets that it is.
func (s *Source) takeDirty() (names []types.NamespacedName) {
	s.mu.Lock()
	dirty, all, lookAtNode, moved := s.dirty, s.all, s.lookN, s.moved
	s.dirty, s.all, s.lookN, s.moved = map[types.NamespacedName]bool{}, false, false, false
	s.mu.Unlock()
	if moved {
		for name := range s.labels.asks {
			dirty[name] = true
		}
	}
	if lookAtNode && s.lookAtNode() {
		all = true
	}
	if all {
		s.sweeping = false
		for name := range s.told {
			dirty[name] = true
		}
		for _, object := range s.services.GetStore().List() {
			svc := object.(*corev1.Service)
			dirty[types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}] = true
		}
	}
	// Where two Services want the same address, the older one has it, on every
	// node and after every restart.
	return slices.SortedFunc(maps.Keys(dirty), s.compareAge)
}

// compareAge orders Services by their creation, and by name where that is the same
// or not known.
func (s *Source) compareAge(a, b types.NamespacedName) int {
	var madeA, madeB time.Time
	if svc := s.Service(a); svc != nil {
		madeA = svc.CreationTimestamp.Time
	}
	if svc := s.Service(b); svc != nil {
		madeB = svc.CreationTimestamp.Time
	}
	return cmp.Or(madeA.Compare(madeB), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// sweepAfter is how soon all Services are computed anew after a cluster IP has come
// up: an endpoint of any of them may have that address, which is forbidden.
const sweepAfter = 30 * time.Second

// claimClusterIPs brings the set of all cluster IPs up to date with one Service.
func (s *Source) claimClusterIPs(name types.NamespacedName) {
	before := s.claimed[name]
	var now []netip.Addr
	if svc := s.Service(name); svc != nil {
		now = translate.ClusterIPsOf(svc, s.options.ServiceProxyName)
	}
	if slices.Equal(before, now) {
		return
	}
	s.clusterIPs.Remove(before)
	s.clusterIPs.Add(now)
	if s.claimed[name] = now; len(now) == 0 {
		delete(s.claimed, name)
		return
	}
	if !s.sweeping {
		s.sweeping = true
		time.AfterFunc(sweepAfter, s.markAll)
	}
}

// askForLabels notes which labels of nodes a Service asks for.
func (s *Source) askForLabels(name types.NamespacedName) {
	var keys []string
	if svc := s.Service(name); svc != nil && svc.Annotations[translate.AnnotationTopologyKeys] != "" {
		keys = translate.NodeKeys(svc, s.slicesOf(name))
	}
	s.labels.ask(name, keys)
}

// translate returns what is served for a Service with the slices given, and how it
// is found, and tells OnProblems what is not.
func (s *Source) translate(name types.NamespacedName, slices []*discoveryv1.EndpointSlice) config.Service {
	svc := s.Service(name)
	if svc == nil {
		s.tellProblems(name, nil)
		return config.Service{Name: name}
	}
	out, problems := translate.Service(svc, slices, *s.node, translate.Options{ServiceProxyName: s.options.ServiceProxyName, ClusterIPs: s.clusterIPs, ForbiddenEndpoints: s.options.ForbiddenEndpoints, NoClientAddress: s.options.NoClientAddress, LoadBalancers: s.options.LoadBalancers, NoAccessLog: s.options.NoAccessLog, Nodes: s.labels.of})
	if s.options.Discovery {
		var more []translate.Problem
		out.Discovery, more = translate.Discovery(svc, slices, translate.Options{})
		problems = append(problems, more...)
	}
	s.tellProblems(name, problems, misnamed(out, slices)...)
	return out
}

// misnamed reports the slices whose ports do not match the Service's.
func misnamed(svc config.Service, slices []*discoveryv1.EndpointSlice) (list []config.Report) {
	for _, m := range translate.Misnamed(svc, slices) {
		list = append(list, config.Report{Object: "EndpointSlice " + m.Slice.Namespace + "/" + m.Slice.Name, Service: svc.Name, Reason: "PortNameDiffers", Message: m.Err.Error(), Served: true})
	}
	return list
}

// computeOne returns what is served for a Service now, and whether that is
// something else than before.
func (s *Source) computeOne(name types.NamespacedName) (config.Service, bool) {
	if s.labels.holds(name) {
		return config.Service{}, false
	}
	slices := s.slicesOf(name)
	out := s.translate(name, slices)
	before, known := s.told[name]
	switch {
	case known && reflect.DeepEqual(before, out), !known && out.Gone():
		return out, false
	case out.Gone():
		delete(s.told, name)
		s.triggers.forget(name)
	default:
		s.told[name] = out
		s.triggers.note(name, slices)
	}
	return out, true
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

// tellProblems tells OnProblems and the log what is wrong that was not before, or of
// which there is now twice as much as was ever told, while it lasted.
func (s *Source) tellProblems(name types.NamespacedName, problems []translate.Problem, more ...config.Report) {
	all := map[string]int{}
	var fresh []translate.Problem
	for _, p := range problems {
		gist := p.Gist()
		told, known := s.problems[name][gist]
		if !known || p.Count >= 2*max(told, 1) {
			fresh = append(fresh, p)
			told = p.Count
		}
		all[gist] = told
	}
	s.options.Reports.Set(name.String(), time.Now(), append(reports(name, problems), more...))
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

func reports(service types.NamespacedName, problems []translate.Problem) (list []config.Report) {
	for _, p := range problems {
		list = append(list, config.Report{Object: p.Kind + " " + p.Name.String(), Service: service, Reason: "PartNotServed", Message: p.Cause().Error()})
	}
	return list
}
