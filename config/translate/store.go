package translate

import (
	"cmp"
	"maps"
	"net/netip"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
)

// StoreOptions configure a Store.
type StoreOptions struct {
	Options // the Store maintains ClusterIPs

	// Discovery requests config.Service.Discovery.
	Discovery bool

	// Names returns the names of all Services. Service returns the object of one, nil if there is none, and Slices its
	// EndpointSlices. The Store calls Slices from several goroutines, for different names.
	Names   func() []types.NamespacedName
	Service func(types.NamespacedName) *corev1.Service
	Slices  func(types.NamespacedName) []*discoveryv1.EndpointSlice
}

// Store holds the model of a source's Services, and computes its changes. Every source uses one. The source marks names
// that may have changed, from any goroutine. One goroutine takes those names, prepares them and then computes them;
// only it may call the other methods.
type Store struct {
	Node  config.Node   // the node that usher runs on; after a change, the source marks the affected Services
	Woken chan struct{} // receives after a mark

	options StoreOptions
	known   map[types.NamespacedName]*entry
	asks    map[types.NamespacedName]bool // Services that need labels of nodes

	mu     sync.Mutex
	dirty  map[types.NamespacedName]bool
	all    bool
	labels bool
}

// entry is the state of a Service.
type entry struct {
	service  *corev1.Service // as of the last Prepare; nil if it was deleted
	template template        // of the object of the last Compute, but with the cluster IPs of service
	model    config.Service
	problems []Problem
	apart    bool // some endpoints of its slices may not be in the model
}

// Result is the result of computing a Service.
type Result struct {
	Service  *corev1.Service // nil if there is none
	Slices   []*discoveryv1.EndpointSlice
	Model    config.Service // contains only its name if the Service is deleted
	Changed  bool           // the model has changed
	Problems []Problem
}

// NewStore returns an empty Store.
func NewStore(options StoreOptions) *Store {
	options.ClusterIPs = ClusterIPs{}
	return &Store{options: options, known: map[types.NamespacedName]*entry{}, asks: map[types.NamespacedName]bool{}, dirty: map[types.NamespacedName]bool{}, Woken: make(chan struct{}, 1)}
}

// Mark records that objects of these Services have changed, and makes Woken receive, even without names.
func (s *Store) Mark(names ...types.NamespacedName) {
	s.mu.Lock()
	for _, name := range names {
		s.dirty[name] = true
	}
	s.mu.Unlock()
	select {
	case s.Woken <- struct{}{}:
	default:
	}
}

// MarkAll marks all Services.
func (s *Store) MarkAll() {
	s.mu.Lock()
	s.all = true
	s.mu.Unlock()
	s.Mark()
}

// MarkLabels records that labels of nodes have changed.
func (s *Store) MarkLabels() {
	s.mu.Lock()
	s.labels = true
	s.mu.Unlock()
	s.Mark()
}

// Take returns the names marked since the last call.
func (s *Store) Take() (names map[types.NamespacedName]bool) {
	s.mu.Lock()
	names, all, labels := s.dirty, s.all, s.labels
	s.dirty, s.all, s.labels = map[types.NamespacedName]bool{}, false, false
	s.mu.Unlock()
	if all {
		for name := range s.known {
			names[name] = true
		}
		for _, name := range s.options.Names() {
			names[name] = true
		}
	}
	if labels {
		for name := range s.asks {
			names[name] = true
		}
	}
	return names
}

// Prepare updates the cluster IPs of these Services, and which of them need labels of nodes. No endpoint may have a
// cluster IP, so Prepare adds to names each Service with an endpoint at a cluster IP that was added or removed. It
// reports whether any Service needs labels.
func (s *Store) Prepare(names map[types.NamespacedName]bool) (labels bool) {
	moved := map[netip.Addr]bool{}
	for name := range names {
		svc, k := s.options.Service(name), s.known[name]
		var had, now []netip.Addr
		if k != nil {
			had = k.template.own
		}
		delete(s.asks, name)
		if svc != nil {
			if now = had; k == nil || k.service != svc {
				now = ClusterIPsOf(svc, s.options.ServiceProxyName)
			}
			if svc.Annotations[AnnotationTopologyKeys] != "" && len(NodeKeys(svc, s.options.Slices(name))) > 0 {
				s.asks[name] = true
			}
			if k == nil {
				k = &entry{model: config.Service{Name: name}}
				s.known[name] = k
			}
		}
		if k != nil {
			k.service = svc
		}
		if slices.Equal(had, now) {
			continue
		}
		for _, a := range slices.Concat(had, now) {
			moved[a] = true
		}
		s.options.ClusterIPs.Remove(had)
		s.options.ClusterIPs.Add(now)
		k.template.own = now
	}
	if list := slices.Collect(maps.Keys(moved)); len(list) > 0 {
		for name, k := range s.known {
			if !names[name] && (k.uses(moved, list) || k.apart && contain(s.options.Slices(name), moved)) {
				names[name] = true
			}
		}
	}
	return len(s.asks) > 0
}

// Compute computes the model of these Services from the Service objects that Prepare got and the current slices. The
// source may have a newer Service by now, and will mark it. Unless ready is set, a Service that needs labels of nodes
// is omitted and keeps its model. The results are sorted by the age of the Services, and then by name. So the older one
// of two Services gets an address that both claim, on every node and after every restart.
func (s *Store) Compute(names map[types.NamespacedName]bool, ready bool) []Result {
	results := make([]Result, 0, len(names))
	for name := range names {
		if ready || !s.asks[name] {
			results = append(results, Result{Model: config.Service{Name: name}})
		}
	}
	Parallel(len(results), func(i int) { s.compute(&results[i]) })
	for _, r := range results {
		if r.Service == nil {
			delete(s.known, r.Model.Name)
		}
	}
	slices.SortFunc(results, func(a, b Result) int {
		var made [2]time.Time
		for i, r := range []Result{a, b} {
			if r.Service != nil {
				made[i] = r.Service.CreationTimestamp.Time
			}
		}
		return cmp.Or(made[0].Compare(made[1]), cmp.Compare(a.Model.Name.Namespace, b.Model.Name.Namespace), cmp.Compare(a.Model.Name.Name, b.Model.Name.Name))
	})
	return results
}

func (s *Store) compute(r *Result) {
	name := r.Model.Name
	k := s.known[name]
	if k == nil {
		return
	}
	if r.Service = k.service; r.Service == nil {
		r.Changed = !k.model.Gone()
		return
	}
	r.Slices = s.options.Slices(name)
	if k.template.of != r.Service {
		k.template = newTemplate(name, r.Service, k.template.own, s.options.Options)
	}
	r.Model, r.Problems = k.template.withEndpoints(name, r.Slices, s.Node, s.options.Options)
	if s.options.Discovery {
		var more []Problem
		r.Model.Discovery, more = Discovery(r.Service, r.Slices, s.options.Options)
		r.Problems = append(r.Problems, more...)
	}
	if r.Model.Gone() {
		r.Model = config.Service{Name: name}
	}
	r.Changed = !same(k.model, r.Model)
	if r.Changed {
		k.model = r.Model
	}
	k.template.ports = k.model.Ports // keeps one copy in memory
	k.problems, k.apart = r.Problems, apart(r.Model, r.Slices)
}

// Model returns the served model of a Service.
func (s *Store) Model(name types.NamespacedName) config.Service {
	if k := s.known[name]; k != nil {
		return k.model
	}
	return config.Service{Name: name}
}

// Problems returns the problems of a Service's last computation.
func (s *Store) Problems(name types.NamespacedName) []Problem {
	if k := s.known[name]; k != nil {
		return k.problems
	}
	return nil
}

// Served returns the number of Services with a model.
func (s *Store) Served() (n int) {
	for _, k := range s.known {
		if !k.model.Gone() {
			n++
		}
	}
	return n
}

// uses reports whether an endpoint of the model has one of addrs, which are also in list.
func (k *entry) uses(addrs map[netip.Addr]bool, list []netip.Addr) bool {
	return slices.ContainsFunc(k.model.Ports, func(p config.ServicePort) bool {
		if len(list) > len(p.Endpoints)/8 {
			return slices.ContainsFunc(p.Endpoints, func(e config.Endpoint) bool { return addrs[e.Addr.Addr()] })
		}
		return slices.ContainsFunc(list, func(a netip.Addr) bool {
			n, _ := slices.BinarySearchFunc(p.Endpoints, a, func(e config.Endpoint, a netip.Addr) int { return e.Addr.Addr().Compare(a) })
			return n < len(p.Endpoints) && p.Endpoints[n].Addr.Addr() == a
		})
	})
}

// same reports whether a and b are equal. Endpoints, which may be many, are compared without reflection.
func same(a, b config.Service) bool {
	equal := len(a.Ports) == len(b.Ports)
	for i := 0; equal && i < len(a.Ports); i++ {
		p, q := a.Ports[i], b.Ports[i]
		for _, lists := range [][2]*[]config.Endpoint{{&p.Endpoints, &q.Endpoints}, {&p.Cluster, &q.Cluster}, {&p.Internal, &q.Internal}, {&p.External, &q.External}} {
			equal = equal && slices.Equal(*lists[0], *lists[1])
			*lists[0], *lists[1] = nil, nil
		}
		equal = equal && reflect.DeepEqual(p, q)
	}
	a.Ports, b.Ports = nil, nil
	return equal && reflect.DeepEqual(a, b)
}

// apart reports whether endpoints in slices may be missing from all ports of the model. None are missing if, for each
// family, a port has as many endpoints as the slices.
func apart(model config.Service, all []*discoveryv1.EndpointSlice) bool {
	for _, family := range []config.Family{config.IPv4, config.IPv6} {
		n := 0
		for _, slice := range all {
			if string(slice.AddressType) == family.String() {
				n += len(slice.Endpoints)
			}
		}
		if n > 0 && !slices.ContainsFunc(model.Ports, func(p config.ServicePort) bool { return p.ID.Family == family && len(p.Endpoints) == n }) {
			return true
		}
	}
	return false
}

// contain reports whether an endpoint in slices has one of these addresses.
func contain(all []*discoveryv1.EndpointSlice, addrs map[netip.Addr]bool) bool {
	for _, slice := range all {
		for i := range slice.Endpoints {
			if list := slice.Endpoints[i].Addresses; len(list) > 0 { // consumers use only the first
				if a, ok := ParseAddr(list[0]); ok && addrs[a] {
					return true
				}
			}
		}
	}
	return false
}

// Parallel calls do with each number from 0 to n-1, in as many goroutines as there are CPUs, and waits for them.
func Parallel(n int, do func(i int)) {
	var next atomic.Int64
	var all sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), n) {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				do(i)
			}
		})
	}
	all.Wait()
}
