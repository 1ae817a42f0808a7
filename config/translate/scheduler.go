package translate

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/usherproxy/usher/config"
)

// Annotations of a Service about the selection of an endpoint for a new connection.
const (
	// AnnotationScheduler is the name of a scheduler, one of config.SchedulerNames.
	AnnotationScheduler = AnnotationPrefix + "scheduler"
	// AnnotationWeight has the weights of endpoints, separated by commas, each as WHO=WEIGHT. WHO is the name of a Pod,
	// with or without its namespace, an address, an address and port, or * for all others.
	AnnotationWeight = AnnotationPrefix + "weight"
)

// annotatedScheduler returns the scheduler of a Service; 0, for the default, if the annotation is missing or invalid.
func annotatedScheduler(svc *corev1.Service, p *problems) (s config.Scheduler) {
	if a, ok := annotation(svc, AnnotationScheduler); ok {
		if err := s.UnmarshalText([]byte(a.text)); err != nil {
			p.add(a.wrong("must be one of %s; the default is used", strings.Join(config.SchedulerNames(), ", ")))
		}
	}
	return s
}

// weights is the parsed AnnotationWeight: of addresses with port, of addresses, of Pods by namespace and name, and of
// all others.
type weights struct {
	places map[netip.AddrPort]config.Weight
	addrs  map[netip.Addr]config.Weight
	pods   map[string]config.Weight
	others config.Weight
}

// annotatedWeights returns nil if svc has no weights. It omits invalid ones.
func annotatedWeights(svc *corev1.Service, p *problems) *weights {
	a, ok := annotation(svc, AnnotationWeight)
	if !ok {
		return nil
	}
	w := &weights{map[netip.AddrPort]config.Weight{}, map[netip.Addr]config.Weight{}, map[string]config.Weight{}, config.WeightOf(1)}
	others := false
	for one := range strings.SplitSeq(a.text, ",") {
		one = strings.TrimSpace(one)
		i := max(0, strings.LastIndexByte(one, '='))
		who := strings.TrimSpace(one[:i])
		number, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(one[i:], "=")))
		if who == "" || err != nil || number < 0 || number > config.MaxWeight {
			p.add(a.wrong("must be POD=WEIGHT or ADDRESS=WEIGHT, separated by commas, with weights from 0 to %d (e.g. web-0=3,10.1.2.3=1,*=2); %q is ignored", config.MaxWeight, one))
			continue
		}
		weight := config.WeightOf(number)
		place, placeErr := netip.ParseAddrPort(who)
		addr, isAddr := ParseAddr(who)
		name := who
		if namespace, rest, ok := strings.Cut(who, "/"); ok && namespace == svc.Namespace {
			name = rest
		}
		first := true
		switch {
		case who == "*":
			if first = !others; first {
				others, w.others = true, weight
			}
		case placeErr == nil:
			first = setFirst(w.places, netip.AddrPortFrom(place.Addr().Unmap(), place.Port()), weight)
		case isAddr:
			first = setFirst(w.addrs, addr, weight)
		case len(validation.IsDNS1123Subdomain(name)) > 0:
			p.add(a.wrong("%q is neither a Pod in the Service's namespace nor an address; ignored", who))
		default:
			first = setFirst(w.pods, svc.Namespace+"/"+name, weight)
		}
		if !first {
			p.add(a.wrong("%q appears twice; the first one is used", who))
		}
	}
	return w
}

// setFirst sets the weight for key, unless it has one already. It reports whether it has set it.
func setFirst[K comparable](weights map[K]config.Weight, key K, weight config.Weight) bool {
	if _, twice := weights[key]; twice {
		return false
	}
	weights[key] = weight
	return true
}

// of returns the weight of an endpoint: the address with its port has precedence over the address, and that over the
// Pod.
func (w *weights) of(e *config.Endpoint) config.Weight {
	if weight, ok := w.places[e.Addr]; ok {
		return weight
	}
	if weight, ok := w.addrs[e.Addr.Addr()]; ok {
		return weight
	}
	if weight, ok := w.pods[e.Pod]; ok {
		return weight
	}
	return w.others
}

// weigh sets the weights of endpoints, and returns those whose weight is not 0: the others get no new connections, even
// if none of these is usable.
func (w *weights) weigh(found []candidate) []candidate {
	for i := range found {
		found[i].Weight = w.of(&found[i].Endpoint)
	}
	return filter(found, func(c candidate) bool { return c.Weight.Int() > 0 })
}

// WeightsOfNobody returns the names in AnnotationWeight that match no endpoint of the Service in the model, if it has
// endpoints: they may be misspelled, or not exist yet.
func WeightsOfNobody(svc *corev1.Service, model config.Service) (names []string) {
	if svc.Annotations[AnnotationWeight] == "" || !slices.ContainsFunc(model.Ports, func(p config.ServicePort) bool { return len(p.Endpoints) > 0 }) {
		return nil
	}
	w := annotatedWeights(svc, &problems{})
	for i := range model.Ports {
		for j := range model.Ports[i].Endpoints {
			e := &model.Ports[i].Endpoints[j]
			delete(w.places, e.Addr)
			delete(w.addrs, e.Addr.Addr())
			delete(w.pods, e.Pod)
		}
	}
	for place := range w.places {
		names = append(names, place.String())
	}
	for addr := range w.addrs {
		names = append(names, addr.String())
	}
	for pod := range w.pods {
		names = append(names, pod)
	}
	slices.Sort(names)
	return names
}
