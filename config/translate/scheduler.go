package translate

import (
	"maps"
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
	// AnnotationWeight has the weights of endpoints, separated by commas, each as ENDPOINT=WEIGHT. ENDPOINT is the name
	// of a Pod, with or without its namespace, an address, an address and port, or * for all others.
	AnnotationWeight = AnnotationPrefix + "weight"
)

// weights is the parsed AnnotationWeight. Its keys are addresses with or without port, namespaces and names of Pods,
// and * for all others.
type weights map[string]config.Weight

// annotatedWeights returns nil if svc has no weights. It omits invalid ones.
func annotatedWeights(svc *corev1.Service, p *problems) weights {
	a, ok := annotation(svc, AnnotationWeight)
	if !ok {
		return nil
	}
	w := weights{}
	for one := range strings.SplitSeq(a.text, ",") {
		one = strings.TrimSpace(one)
		i := max(0, strings.LastIndexByte(one, '='))
		who := strings.TrimSpace(one[:i])
		number, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(one[i:], "=")))
		if who == "" || err != nil || number < 0 || number > config.MaxWeight {
			p.add(a.wrong("must be POD=WEIGHT or ADDRESS=WEIGHT, separated by commas, with weights from 0 to %d (e.g. web-0=3,10.1.2.3=1,*=2); %q is ignored", config.MaxWeight, one))
			continue
		}
		place, placeErr := netip.ParseAddrPort(who)
		addr, isAddr := ParseAddr(who)
		name := who
		if namespace, rest, ok := strings.Cut(who, "/"); ok && namespace == svc.Namespace {
			name = rest
		}
		key := svc.Namespace + "/" + name
		switch {
		case who == "*":
			key = who
		case placeErr == nil:
			key = netip.AddrPortFrom(place.Addr().Unmap(), place.Port()).String()
		case isAddr:
			key = addr.String()
		case len(validation.IsDNS1123Subdomain(name)) > 0:
			p.add(a.wrong("%q is neither a Pod in the Service's namespace nor an address; ignored", who))
			continue
		}
		if _, twice := w[key]; twice {
			p.add(a.wrong("%q appears twice; the first one is used", who))
			continue
		}
		w[key] = config.WeightOf(number)
	}
	return w
}

// of returns the weight of an endpoint. Its address with port takes precedence, then its address, then its Pod.
func (w weights) of(e *config.Endpoint) config.Weight {
	for _, key := range []string{e.Addr.String(), e.Addr.Addr().String(), e.Pod, "*"} {
		if weight, ok := w[key]; ok {
			return weight
		}
	}
	return config.WeightOf(1)
}

// weigh sets the weights of found, and returns the candidates whose weight is not 0. The others get no new connections,
// even if none of the returned ones is usable.
func (w weights) weigh(found []candidate) []candidate {
	for i := range found {
		found[i].Weight = w.of(&found[i].Endpoint)
	}
	return filter(found, func(c candidate) bool { return c.Weight.Int() > 0 })
}

// WeightsOfNobody returns the keys of the Service's weights that match none of its endpoints in the model: they may be
// misspelled, or not exist yet. It returns none if the Service has no endpoints.
func WeightsOfNobody(svc *corev1.Service, model config.Service) []string {
	if svc.Annotations[AnnotationWeight] == "" || !slices.ContainsFunc(model.Ports, func(p config.ServicePort) bool { return len(p.Endpoints) > 0 }) {
		return nil
	}
	w := annotatedWeights(svc, &problems{})
	delete(w, "*")
	for i := range model.Ports {
		for j := range model.Ports[i].Endpoints {
			e := &model.Ports[i].Endpoints[j]
			delete(w, e.Addr.String())
			delete(w, e.Addr.Addr().String())
			delete(w, e.Pod)
		}
	}
	return slices.Sorted(maps.Keys(w))
}
