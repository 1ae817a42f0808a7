package manifest

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/translate"
)

// resolver makes the model from the objects of all files. It makes anew what the
// objects that changed have to do with, so that a change costs what it changes. It
// remembers which Service had which addresses, so that they stay the same while it
// lives.
type resolver struct {
	nets  networks
	node  config.Node
	store *translate.Store // of the Services with the addresses that they were given

	defined map[key][]*object // all definitions of each object: the first counts
	twice   map[key]bool      // the objects with several

	services map[name]*service            // each that is defined, or has slices; those of no Service are with the zero name
	nodes    map[string]map[string]string // labels of Nodes
	cidrs    map[string][]string          // networks of ServiceCIDRs
	refused  map[name]bool                // those that could not have what they claim
	troubled map[name]bool                // those of which there is something to tell
	owners   claims

	nodePorts    Ports    // to give out
	balancerNets networks // to give out IPs of load balancers from; none: nobody gets any
	balancers    map[netip.Addr]name
	balanced     map[name][]netip.Addr // what is in balancers
}

func newResolver(nets networks, node config.Node, opts translate.Options, discovery bool) *resolver {
	r := &resolver{
		nodes: map[string]map[string]string{}, cidrs: map[string][]string{}, nodePorts: DefaultNodePorts,
		nets: nets, node: node,
		defined: map[key][]*object{}, twice: map[key]bool{}, services: map[name]*service{},
		refused: map[name]bool{}, troubled: map[name]bool{}, owners: claims{},
		balancers: map[netip.Addr]name{}, balanced: map[name][]netip.Addr{},
	}
	opts.Nodes = func(name string) map[string]string { return r.nodes[name] }
	r.store = translate.NewStore(translate.StoreOptions{Options: opts, Discovery: discovery,
		Names: func() []name { return slices.Collect(maps.Keys(r.services)) },
		Service: func(n name) *corev1.Service {
			if s := r.services[n]; s != nil {
				return s.had.service
			}
			return nil
		},
		Slices: func(n name) []*discoveryv1.EndpointSlice { return slicesIn(r.services[n].current()) },
	})
	r.store.Node = node
	return r
}

// service is what is known of a Service, and what was made of that.
type service struct {
	object *object   // nil if it is not defined
	slices []*object // its EndpointSlices and Endpoints

	had    addressed
	claims []claim // what it owns
	reason error   // why it could not have what it claims

	errors, warnings []finding
}

// addressed is a Service as it was in the last resolution, with its cluster IPs, and
// as it was read; that is nil if the Service could not have what it claims and is
// what it was before. It is zero if there was none.
type addressed struct{ service, read *corev1.Service }

// finding is something to tell about an object, which may move in its file.
type finding struct {
	about *object
	err   error
}

// replace takes now for what a file said before.
func (r *resolver) replace(before, now []*object) {
	for i, o := range now {
		o.at = i
	}
	for len(before) > 0 && len(now) > 0 && before[0] == now[0] {
		before, now = before[1:], now[1:]
	}
	for len(before) > 0 && len(now) > 0 && before[len(before)-1] == now[len(now)-1] {
		before, now = before[:len(before)-1], now[:len(now)-1]
	}
	counted := make(map[key]*object, len(now))
	definitions := func(k key) []*object {
		all := r.defined[k]
		if _, known := counted[k]; !known {
			counted[k] = first(all)
		}
		return all
	}
	for _, o := range before {
		all := definitions(o.key)
		i := slices.Index(all, o)
		r.define(o.key, slices.Delete(all, i, i+1))
	}
	for _, o := range now {
		r.define(o.key, append(definitions(o.key), o))
	}
	for k, was := range counted {
		if is := first(r.defined[k]); is != was {
			r.counts(was, false)
			r.counts(is, true)
		}
	}
}

// define takes all for the definitions of an object.
func (r *resolver) define(k key, all []*object) {
	if delete(r.twice, k); len(all) > 1 {
		r.twice[k] = true
		slices.SortFunc(all, precedence)
	}
	if r.defined[k] = all; len(all) == 0 {
		delete(r.defined, k)
	}
}

func first(all []*object) *object {
	if len(all) == 0 {
		return nil
	}
	return all[0]
}

// precedence orders objects by file, and by where in it they are.
func precedence(a, b *object) int {
	return cmp.Or(cmp.Compare(a.place.File, b.place.File), cmp.Compare(a.at, b.at))
}

// counts notes that an object counts from now on, or does not any more.
func (r *resolver) counts(o *object, does bool) {
	if o != nil && o.kind == "Node" {
		r.countsNode(o, does)
		return
	}
	if o != nil && o.kind == "ServiceCIDR" {
		if delete(r.cidrs, o.name.Name); does {
			r.cidrs[o.name.Name] = o.cidrs
		}
		return
	}
	if o == nil || o.service == nil && len(o.slices) == 0 { // an Endpoints that is a lock
		return
	}
	n := o.of()
	s := r.services[n]
	if s == nil {
		s = &service{}
		r.services[n] = s
	}
	r.store.Mark(n)
	switch {
	case o.service != nil && does:
		s.object = o
	case o.service != nil:
		s.object = nil
	case does:
		s.slices = append(s.slices, o)
	default:
		s.slices = slices.DeleteFunc(s.slices, func(other *object) bool { return other == o })
	}
}

// countsNode does that for a Node.
func (r *resolver) countsNode(o *object, does bool) {
	delete(r.nodes, o.name.Name)
	if does {
		r.nodes[o.name.Name] = o.labels
	}
	if r.store.MarkLabels(); o.name.Name == r.node.Name {
		r.store.MarkAll()
	}
}

// of returns the Service that an object is or belongs to; the zero name if to none.
func (o *object) of() name {
	if o.service != nil {
		return o.name
	}
	if n, ok := translate.ServiceOf(o.slices[0]); ok {
		return n
	}
	return name{}
}

// resolve makes the model of what has changed. It returns the Services that are
// not as they were, and those that are gone with nothing but their names, in the order of translate.Store.Compute.
func (r *resolver) resolve() (changed []config.Service) {
	look := r.store.Take()
	marked := maps.Clone(look)
	had := map[name]*corev1.Service{}
	for n := range r.refused { // what those want may be free now
		look[n], had[n] = true, r.services[n].had.service
	}
	r.address(look)
	maps.DeleteFunc(look, func(n name, _ bool) bool { return !marked[n] && r.services[n].had.service == had[n] })
	r.store.Prepare(look)
	for _, result := range r.store.Compute(look, nil) {
		if result.Changed {
			changed = append(changed, result.Model)
		}
	}
	for n := range had {
		look[n] = true
	}
	for n := range look {
		r.diagnose(n, r.services[n])
	}
	return changed
}

// unproxied returns how many valid Services have nothing that usher serves.
func (r *resolver) unproxied() (n int) {
	for name, s := range r.services {
		if s.had.service != nil && len(r.store.Model(name).Ports) == 0 {
			n++
		}
	}
	return n
}

// address gives Services their cluster IPs and node ports, but for those that
// cannot have what they claim. All others have what they had. In this order Services
// get what they ask for:
//
//  1. each what it had already: nothing good is taken away by a mistake in
//     another file;
//  2. each what it names, in order;
//  3. those of them that could not, what their last good version had;
//  4. the others a cluster IP, node ports and IPs of load balancers that are left.
func (r *resolver) address(names map[name]bool) {
	type claimant struct {
		*service
		name   name
		to     *corev1.Service // what is to have what it claims
		read   *corev1.Service // as it was read, if to is what became of that
		wishes []wish
	}
	var all []claimant
	for n := range names {
		s := r.services[n]
		c := claimant{service: s, name: n}
		if s.object != nil {
			c.to, c.read = s.keep(), s.object.service
			c.wishes = wishes(c.to)
			all = append(all, c)
		} else {
			s.had = addressed{}
		}
		for _, had := range s.claims {
			if !slices.ContainsFunc(c.wishes, func(w wish) bool { return w.claim == had }) {
				delete(r.owners, had)
			}
		}
		delete(r.refused, n)
		s.claims, s.reason = nil, nil
	}
	slices.SortFunc(all, func(a, b claimant) int { return precedence(a.object, b.object) })
	refuse := func(c claimant, err error) { c.reason, r.refused[c.name] = err, true }
	var good, late []claimant
	for _, c := range all {
		if err := r.owners.grant(c.name, c.wishes); err != nil {
			refuse(c, err)
			late = append(late, c)
			continue
		}
		good = append(good, c)
	}
	for _, c := range late {
		c.to, c.read = c.had.service, nil
		if c.to != nil && r.owners.grant(c.name, wishes(c.to)) == nil {
			good = append(good, c)
		} else {
			c.had = addressed{}
		}
	}
	for _, c := range good {
		if svc, err := r.allocate(c.to); err != nil {
			refuse(c, err)
			c.had = addressed{}
		} else {
			c.had = addressed{svc, c.read}
		}
	}
	explicit := sync.OnceValue(r.explicitIPs)
	for n := range names {
		s := r.services[n]
		svc, err := r.balance(n, s.had.service, explicit)
		if s.had.service = svc; err != nil && s.reason == nil {
			s.reason, r.refused[n] = err, true
		}
	}
	for _, c := range all {
		if c.had.service != nil {
			c.wishes = append(c.wishes, wishes(c.had.service)...)
		}
		for _, w := range c.wishes {
			if r.owners[w.claim] == c.name && !slices.Contains(c.claims, w.claim) {
				c.claims = append(c.claims, w.claim)
			}
		}
	}
}

// keep returns the Service as it was read, with the cluster IPs and node ports that were
// allocated to it before, if it still wants them allocated.
func (s *service) keep() *corev1.Service {
	old, svc := s.had.service, s.object.service
	if old != nil && s.had.read == svc {
		return old
	}
	if old == nil {
		return svc
	}
	svc = withNodePorts(svc, hadNodePorts(old))
	if !lacksClusterIPs(svc) || !hasClusterIPs(old) {
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

// lacksClusterIPs reports whether svc is to get cluster IPs.
func lacksClusterIPs(svc *corev1.Service) bool {
	return hasClusterIPs(svc) && len(svc.Spec.ClusterIPs) < len(svc.Spec.IPFamilies)
}

// allocate returns svc with a cluster IP for each family that it has none for, and with node
// ports.
func (r *resolver) allocate(svc *corev1.Service) (*corev1.Service, error) {
	if !lacksClusterIPs(svc) {
		return r.allocateNodePorts(svc)
	}
	owner := name{Namespace: svc.Namespace, Name: svc.Name}
	ips, got := slices.Clone(svc.Spec.ClusterIPs), []claim(nil)
	for _, f := range svc.Spec.IPFamilies[len(ips):] {
		network := r.nets.of(familyOf(f))
		a, ok := address(network, owner.String(), r.owners.taken)
		if !ok {
			return nil, fmt.Errorf("spec.clusterIP: no free address in service CIDR %v", network)
		}
		got, ips = append(got, claim{addr: a}), append(ips, a.String())
	}
	for _, c := range got {
		r.owners[c] = owner
	}
	return r.allocateNodePorts(withClusterIPs(svc, ips))
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
