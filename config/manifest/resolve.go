package manifest

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/translate"
)

// resolver computes the model from the objects of all files. It recomputes only the part that changed objects affect,
// so that the cost of a change is proportional to the change. It keeps the addresses of each Service, so that they stay
// the same as long as the Service exists.
type resolver struct {
	nets  networks
	node  config.Node
	store *translate.Store // of the Services with their allocated addresses

	defined map[key][]*object // all definitions of each object: the first is used
	twice   map[key]bool      // objects with several definitions

	services map[name]*service            // defined, or with slices; slices of no Service have the zero name
	nodes    map[string]map[string]string // labels of Nodes
	cidrs    map[string][]string          // networks of ServiceCIDRs
	refused  map[name]bool                // Services whose claims were refused
	troubled map[name]bool                // Services with errors or warnings
	owners   claims

	nodePorts    Ports    // for allocation
	balancerNets networks // for allocating load balancer IPs; if none, usher allocates none
	balancers    map[netip.Addr]name
	balanced     map[name][]netip.Addr // the reverse of balancers
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

// service is the input and state of a Service.
type service struct {
	object *object   // nil if it is not defined
	slices []*object // its EndpointSlices and Endpoints

	had    addressed
	claims []claim // the claims that it owns
	reason error   // why its claims were refused

	errors, warnings []finding
}

// addressed is a Service as of the last resolution. Its field service has the allocated addresses and node ports; read
// is the same Service as it was read. read is nil if the Service keeps its previous version because its claims were
// refused. Both are nil if there is no valid version.
type addressed struct{ service, read *corev1.Service }

// finding is an error or warning about an object, whose place in its file may change.
type finding struct {
	about *object
	err   error
}

// replace replaces the objects of a file.
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
			r.setInEffect(was, false)
			r.setInEffect(is, true)
		}
	}
}

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

// precedence orders objects by file, and by place in it.
func precedence(a, b *object) int {
	return cmp.Or(cmp.Compare(a.place.File, b.place.File), cmp.Compare(a.at, b.at))
}

// setInEffect records that an object is now in effect, or no longer is.
func (r *resolver) setInEffect(o *object, does bool) {
	if o != nil && o.kind == "Node" {
		r.setNodeInEffect(o, does)
		return
	}
	if o != nil && o.kind == "ServiceCIDR" {
		if delete(r.cidrs, o.name.Name); does {
			r.cidrs[o.name.Name] = o.cidrs
		}
		return
	}
	if o == nil || o.service == nil && o.slices == nil { // an Endpoints that is not mirrored
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

// setNodeInEffect is setInEffect for a Node.
func (r *resolver) setNodeInEffect(o *object, does bool) {
	delete(r.nodes, o.name.Name)
	if does {
		r.nodes[o.name.Name] = o.labels
	}
	if r.store.MarkLabels(); o.name.Name == r.node.Name {
		r.store.MarkAll()
	}
}

// of returns the name of the Service that o belongs to, or the zero name.
func (o *object) of() name {
	if o.service != nil || o.kind == "Endpoints" {
		return o.name
	}
	if n, ok := translate.ServiceOf(o.slices[0]); ok {
		return n
	}
	return name{}
}

// resolve recomputes the model of the changed Services. It returns those that differ, and removed ones with only their
// names, in the order of translate.Store.Compute.
func (r *resolver) resolve() (changed []config.Service) {
	look := r.store.Take()
	marked := maps.Clone(look)
	had := map[name]*corev1.Service{}
	for n := range r.refused { // their claims may be free now
		look[n], had[n] = true, r.services[n].had.service
	}
	r.address(look)
	maps.DeleteFunc(look, func(n name, _ bool) bool { return !marked[n] && r.services[n].had.service == had[n] })
	r.store.Prepare(look)
	for _, result := range r.store.Compute(look, true) {
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

// unproxied returns the number of valid Services that usher does not serve.
func (r *resolver) unproxied() (n int) {
	for name, s := range r.services {
		if s.had.service != nil && len(r.store.Model(name).Ports) == 0 {
			n++
		}
	}
	return n
}

// address assigns cluster IPs, node ports and load balancer IPs to the named Services, and refuses claims that
// conflict. All other Services keep theirs. It grants claims in this order:
//
//  1. claims that a Service has and still names: an error in another file takes none away;
//  2. claims that Services name, in the order of the files;
//  3. claims of the last valid version of Services that were refused in step 2;
//  4. free addresses and ports, to Services that lack some.
func (r *resolver) address(names map[name]bool) {
	type claimant struct {
		*service
		name          name
		to            *corev1.Service // the Service that makes the claims
		read          *corev1.Service // the Service as read, if to is derived from it
		claimRequests []claimRequest
	}
	var all []claimant
	names = maps.Clone(names)
	maps.DeleteFunc(names, func(n name, _ bool) bool { // a Service keeps all claims if only its endpoints differ
		s := r.services[n]
		return s.object != nil && s.object.service == s.had.read && s.reason == nil
	})
	for n := range names {
		s := r.services[n]
		c := claimant{service: s, name: n}
		if s.object != nil {
			c.to, c.read = s.keep(), s.object.service
			c.claimRequests = claimRequests(c.to)
			all = append(all, c)
		} else {
			s.had = addressed{}
		}
		for _, had := range s.claims {
			if !slices.ContainsFunc(c.claimRequests, func(w claimRequest) bool { return w.claim == had }) {
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
		if err := r.owners.grant(c.name, c.claimRequests); err != nil {
			refuse(c, err)
			late = append(late, c)
			continue
		}
		good = append(good, c)
	}
	for _, c := range late {
		c.to, c.read = c.had.service, nil
		if c.to != nil && r.owners.grant(c.name, claimRequests(c.to)) == nil {
			good = append(good, c)
		} else {
			c.had = addressed{}
		}
	}
	slices.SortStableFunc(good, func(a, b claimant) int { // served ones first: they may need claims that they had
		return cmp.Compare(served(b.service), served(a.service))
	})
	for _, c := range good {
		svc, err := r.allocate(c.to)
		if err != nil {
			refuse(c, err)
			for _, w := range c.claimRequests {
				if r.owners[w.claim] == c.name {
					delete(r.owners, w.claim)
				}
			}
			svc, c.read = c.had.service, nil // the last valid version
			if svc == nil || r.owners.grant(c.name, claimRequests(svc)) != nil {
				c.had = addressed{}
				continue
			}
		}
		c.had = addressed{svc, c.read}
	}
	if len(r.balancerNets) > 0 && len(names) > 0 {
		explicit, had := r.explicitIPs(), map[name][]netip.Addr{}
		for n := range names {
			had[n] = r.release(n)
		}
		good = slices.DeleteFunc(good, func(c claimant) bool { return c.had.service == nil })
		for _, c := range good {
			r.keepIPs(c.name, c.had.service, had[c.name])
		}
		for _, c := range good {
			svc, err := r.balance(c.name, c.had.service, had[c.name], explicit)
			if c.had.service = svc; err != nil && c.reason == nil {
				c.reason, r.refused[c.name] = err, true
			}
		}
	}
	for _, c := range all {
		if c.had.service != nil {
			c.claimRequests = append(c.claimRequests, claimRequests(c.had.service)...)
		}
		for _, w := range c.claimRequests {
			if r.owners[w.claim] == c.name && !slices.Contains(c.claims, w.claim) {
				c.claims = append(c.claims, w.claim)
			}
		}
	}
}

// served returns 1 if s has a valid version, else 0.
func served(s *service) int {
	if s.had.service != nil {
		return 1
	}
	return 0
}

// keep returns the Service as it was read, with its previously allocated cluster IPs and node ports, if it still needs
// them.
func (s *service) keep() *corev1.Service {
	old, svc := s.had.service, s.object.service
	if old != nil && s.had.read == svc {
		return old
	}
	if old == nil {
		return svc
	}
	svc = withNodePorts(svc, hadNodePorts(old, svc))
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

// lacksClusterIPs reports whether svc needs more cluster IPs.
func lacksClusterIPs(svc *corev1.Service) bool {
	return hasClusterIPs(svc) && len(svc.Spec.ClusterIPs) < len(svc.Spec.IPFamilies)
}

// allocate returns svc with a cluster IP for each family that lacks one, and with node ports. If it fails, it takes
// none.
func (r *resolver) allocate(svc *corev1.Service) (_ *corev1.Service, err error) {
	var got []claim
	defer func() {
		if err != nil {
			for _, c := range got {
				delete(r.owners, c)
			}
		}
	}()
	if lacksClusterIPs(svc) {
		owner, ips := name{Namespace: svc.Namespace, Name: svc.Name}, slices.Clone(svc.Spec.ClusterIPs)
		for _, f := range svc.Spec.IPFamilies[len(ips):] {
			network := r.nets.of(familyOf(f))
			a, ok := address(network, owner.String(), r.owners.taken)
			if !ok {
				return nil, fmt.Errorf("spec.clusterIP: no free address in service CIDR %v", network)
			}
			got, ips = append(got, claim{addr: a}), append(ips, a.String())
			r.owners[claim{addr: a}] = owner
		}
		svc = withClusterIPs(svc, ips)
	}
	return r.allocateNodePorts(svc, &got)
}

// withClusterIPs returns a copy of svc with these cluster IPs. It shares all else with svc, which is not changed.
func withClusterIPs(svc *corev1.Service, ips []string) *corev1.Service {
	if len(ips) == 0 {
		return svc
	}
	out := *svc
	out.Spec.ClusterIP, out.Spec.ClusterIPs = ips[0], ips
	return &out
}
