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

// StoreOptions are what a Store is made of.
type StoreOptions struct {
	Options // the ClusterIPs are the Store's

	// Discovery asks for config.Service.Discovery.
	Discovery bool

	// Names returns the names of all Services. Service returns the object of one, nil if there is none,
	// and Slices its EndpointSlices. Several goroutines may call both at a time, for different names.
	Names   func() []types.NamespacedName
	Service func(types.NamespacedName) *corev1.Service
	Slices  func(types.NamespacedName) []*discoveryv1.EndpointSlice
}

// Store holds the model of the Services of a source, and computes which of it changes. Sources differ in where
// they have objects from, and share this. A source marks what may have changed, from any
// goroutine; one goroutine, which calls all other methods, takes those names, prepares and computes them.
type Store struct {
	Node  config.Node   // that usher runs on. What another one changes has to be marked
	Woken chan struct{} // receives after something was noted

	options StoreOptions
	known   map[types.NamespacedName]*entry
	asks    map[types.NamespacedName][]string // labels of nodes that Services ask for

	mu     sync.Mutex
	dirty  map[types.NamespacedName]bool
	all    bool
	labels bool
}

// entry is what is known of a Service.
type entry struct {
	clusterIPs []netip.Addr
	model      config.Service
	problems   []Problem
	apart      bool // there may be endpoints that are not in the model
}

// Result is what was computed of a Service.
type Result struct {
	Service  *corev1.Service // nil if there is none
	Slices   []*discoveryv1.EndpointSlice
	Model    config.Service // with no more than its name if the Service is gone
	Changed  bool           // the model has
	Problems []Problem
}

// NewStore returns an empty Store.
func NewStore(options StoreOptions) *Store {
	options.ClusterIPs = ClusterIPs{}
	return &Store{options: options, known: map[types.NamespacedName]*entry{}, asks: map[types.NamespacedName][]string{}, dirty: map[types.NamespacedName]bool{}, Woken: make(chan struct{}, 1)}
}

// Mark notes that objects of these Services have changed, and makes Woken receive, also if there are none.
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

// MarkAll notes that all Services have to be computed again.
func (s *Store) MarkAll() {
	s.mu.Lock()
	s.all = true
	s.mu.Unlock()
	s.Mark()
}

// MarkLabels notes that labels of nodes have changed.
func (s *Store) MarkLabels() {
	s.mu.Lock()
	s.labels = true
	s.mu.Unlock()
	s.Mark()
}

// Take returns what was marked since the last call.
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

// Prepare takes up the cluster IPs of these Services, and which labels of nodes they ask for. It adds to
// names each Service with an endpoint at a cluster IP that came or went: no endpoint may have one. It returns
// the labels that all Services ask for.
func (s *Store) Prepare(names map[types.NamespacedName]bool) (labels map[string]bool) {
	moved := map[netip.Addr]bool{}
	for name := range names {
		svc, k := s.options.Service(name), s.known[name]
		var had, now []netip.Addr
		if k != nil {
			had = k.clusterIPs
		}
		delete(s.asks, name)
		if svc != nil {
			now = ClusterIPsOf(svc, s.options.ServiceProxyName)
			if svc.Annotations[AnnotationTopologyKeys] != "" {
				if keys := NodeKeys(svc, s.options.Slices(name)); len(keys) > 0 {
					s.asks[name] = keys
				}
			}
			if k == nil {
				k = &entry{model: config.Service{Name: name}}
				s.known[name] = k
			}
		}
		if slices.Equal(had, now) {
			continue
		}
		for _, a := range slices.Concat(had, now) {
			moved[a] = true
		}
		s.options.ClusterIPs.Remove(had)
		s.options.ClusterIPs.Add(now)
		k.clusterIPs = now
	}
	if list := slices.Collect(maps.Keys(moved)); len(list) > 0 {
		for name, k := range s.known {
			if !names[name] && (k.uses(moved, list) || k.apart && contain(s.options.Slices(name), moved)) {
				names[name] = true
			}
		}
	}
	labels = map[string]bool{}
	for _, keys := range s.asks {
		for _, key := range keys {
			labels[key] = true
		}
	}
	return labels
}

// Compute makes the model of these Services from their objects, which were prepared. It returns the
// results by the age of the Services, and then by name: where two want the same address, the older has it, on every
// node and after every restart. A Service that asks for labels of nodes which are not ready stays as it was; a
// nil ready means that all are.
func (s *Store) Compute(names map[types.NamespacedName]bool, ready func(labels []string) bool) []Result {
	results := make([]Result, 0, len(names))
	for name := range names {
		if asks := s.asks[name]; len(asks) == 0 || ready == nil || ready(asks) {
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
	r.Service = s.options.Service(name)
	k := s.known[name]
	if r.Service == nil {
		r.Changed = k != nil && !k.model.Gone()
		return
	}
	r.Slices = s.options.Slices(name)
	r.Model, r.Problems = Service(r.Service, r.Slices, s.Node, s.options.Options)
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
	k.problems, k.apart = r.Problems, apart(r.Model, r.Slices)
}

// Model returns what is served of a Service, and Problems what is not.
func (s *Store) Model(name types.NamespacedName) config.Service {
	if k := s.known[name]; k != nil {
		return k.model
	}
	return config.Service{Name: name}
}

// Problems returns what was wrong with a Service when it was computed.
func (s *Store) Problems(name types.NamespacedName) []Problem {
	if k := s.known[name]; k != nil {
		return k.problems
	}
	return nil
}

// Served returns the number of Services that there is a model of.
func (s *Store) Served() (n int) {
	for _, k := range s.known {
		if !k.model.Gone() {
			n++
		}
	}
	return n
}

// uses reports whether an endpoint of the model has one of these addresses, which list has, too.
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

// same reports whether a and b are equal. Endpoints, of which there may be many, are compared without reflection.
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

// apart reports whether there may be endpoints in slices that are in no port of the model: it is false if for
// each family a port has as many as the slices.
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
			if list := slice.Endpoints[i].Addresses; len(list) > 0 { // consumers use no other
				if a, ok := ParseAddr(list[0]); ok && addrs[a] {
					return true
				}
			}
		}
	}
	return false
}

// Parallel does n things, on as many CPUs as there are.
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
