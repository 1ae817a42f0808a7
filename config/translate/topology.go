package translate

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/usherproxy/usher/config"
)

// AnnotationTopologyKeys are labels of nodes, with commas between them, and perhaps "*" as the
// last: what spec.topologyKeys of a Service was in Kubernetes 1.17 to 1.21. A connection goes to
// endpoints on nodes that have this node's value of the first label for which there are some;
// "*" are all; if none is left, there is no endpoint.
const AnnotationTopologyKeys = AnnotationPrefix + "topology-keys"

const (
	// maxTopologyKeys is how many there may be (MaxServiceTopologyKeys of Kubernetes 1.17).
	maxTopologyKeys = 16
	anyTopology     = "*"
)

// ValidateTopologyKeys says what is wrong with topology keys of svc that are at path, as the API
// servers of Kubernetes 1.17 to 1.21 did.
func ValidateTopologyKeys(svc *corev1.Service, keys []string, path *field.Path) (errs field.ErrorList) {
	if len(keys) > 0 && svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		errs = append(errs, field.Forbidden(path, "may not be specified when `externalTrafficPolicy=Local`"))
	}
	if len(keys) > maxTopologyKeys {
		return append(errs, field.TooMany(path, len(keys), maxTopologyKeys))
	}
	for i, key := range keys {
		at := path.Index(i)
		if slices.Contains(keys[:i], key) {
			errs = append(errs, field.Duplicate(at, key))
		}
		if key == anyTopology {
			if i < len(keys)-1 {
				errs = append(errs, field.Invalid(at, key, `"*" must be the last value specified`))
			}
			continue
		}
		for _, wrong := range validation.IsQualifiedName(key) {
			errs = append(errs, field.Invalid(at, key, wrong))
		}
	}
	return errs
}

// topologyKeys returns what the annotation says; none if it is not there or not valid.
func topologyKeys(svc *corev1.Service, p *problems) []string {
	a, ok := annotation(svc, AnnotationTopologyKeys)
	if !ok {
		return nil
	}
	keys := strings.Split(a.text, ",")
	for i := range keys {
		keys[i] = strings.TrimSpace(keys[i])
	}
	errs := ValidateTopologyKeys(svc, keys, a.path)
	for _, err := range errs {
		if err.Detail != "" {
			err.Detail += "; "
		}
		err.Detail += "the endpoints of all nodes are used"
		p.add(err)
	}
	if len(errs) > 0 {
		return nil
	}
	return keys
}

// Nodes returns the labels of the node of that name; none if they are not known. It is called by
// several goroutines. A nil Nodes knows none.
type Nodes func(name string) map[string]string

func (n Nodes) label(name, key string) string {
	if n == nil || name == "" {
		return ""
	}
	return n(name)[key]
}

// NodeKeys returns the labels of nodes that it takes to know for which endpoints of svc this
// node's connections are, beside what slices tell: none for most Services.
func NodeKeys(svc *corev1.Service, all []*discoveryv1.EndpointSlice) (keys []string) {
	for _, key := range topologyKeys(svc, &problems{}) {
		if key != anyTopology && key != corev1.LabelHostname && (key != corev1.LabelTopologyZone || lacksZone(all)) {
			keys = append(keys, key)
		}
	}
	return keys
}

// lacksZone reports whether there is an endpoint whose zone only its node can tell.
func lacksZone(all []*discoveryv1.EndpointSlice) bool {
	return slices.ContainsFunc(all, func(slice *discoveryv1.EndpointSlice) bool {
		return slices.ContainsFunc(slice.Endpoints, func(e discoveryv1.Endpoint) bool { return e.Zone == nil && e.NodeName != nil })
	})
}

// place is where this node is, among the others.
type place struct {
	config.Node
	nodes Nodes
}

func placeOf(node config.Node, nodes Nodes) place {
	node.Zone = cmp.Or(node.Labels[corev1.LabelTopologyZone], node.Zone, nodes.label(node.Name, corev1.LabelTopologyZone))
	return place{node, nodes}
}

// label returns this node's value of a label; "" if it has none.
func (at place) label(key string) string {
	switch key {
	case corev1.LabelHostname:
		return at.Name // which the slices tell of the others; the label may be another
	case corev1.LabelTopologyZone:
		return at.Zone
	}
	return cmp.Or(at.Labels[key], at.nodes.label(at.Name, key))
}

// labelOf returns the same of the node that c is on.
func (at place) labelOf(c candidate, key string) string {
	switch {
	case key == corev1.LabelHostname:
		return c.Node
	case key == corev1.LabelTopologyZone && c.Zone != "":
		return c.Zone
	case c.Node != "" && c.Node == at.Name:
		return at.label(key)
	}
	return cmp.Or(c.labels[key], at.nodes.label(c.Node, key))
}

// nearest returns those of the usable candidates that are on nodes which have this node's value
// of the first key for which there are some, and which key that is.
func (at place) nearest(usable []candidate, keys []string) ([]candidate, *config.Topology) {
	for _, key := range keys {
		if key == anyTopology {
			return usable, &config.Topology{Keys: keys, Key: key}
		}
		value := at.label(key)
		if value == "" {
			continue
		}
		if near := filter(usable, func(c candidate) bool { return at.labelOf(c, key) == value }); len(near) > 0 {
			return near, &config.Topology{Keys: keys, Key: key, Value: value}
		}
	}
	return nil, &config.Topology{Keys: keys}
}
