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

// AnnotationTopologyKeys has labels of nodes, separated by commas, and optionally "*" as the last: like
// spec.topologyKeys of a Service in Kubernetes 1.17 to 1.21. A connection goes to endpoints on nodes with this node's
// value of the first label that matches any. "*" matches all. If no label matches, there is no endpoint.
const AnnotationTopologyKeys = AnnotationPrefix + "topology-keys"

const (
	// maxTopologyKeys is their maximum number (MaxServiceTopologyKeys of Kubernetes 1.17).
	maxTopologyKeys = 16
	anyTopology     = "*"
)

// ValidateTopologyKeys validates topology keys of svc that are at path, as the API servers of Kubernetes 1.17 to 1.21
// did.
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

// topologyKeys returns the annotation's keys; none if it is missing or invalid.
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
		err.Detail += "the topology keys are ignored"
		p.add(err)
	}
	if len(errs) > 0 {
		return nil
	}
	return keys
}

// Nodes returns the labels of the node of that name; none if they are unknown. Several goroutines call it. A nil Nodes
// knows none.
type Nodes func(name string) map[string]string

func (n Nodes) label(name, key string) string {
	if n == nil || name == "" {
		return ""
	}
	return n(name)[key]
}

// NodeKeys returns the labels of nodes, in addition to the slices' data, that determine which endpoints of svc this
// node uses: none for most Services.
func NodeKeys(svc *corev1.Service, all []*discoveryv1.EndpointSlice) (keys []string) {
	for _, key := range topologyKeys(svc, &problems{}) {
		if key != anyTopology && key != corev1.LabelHostname && (key != corev1.LabelTopologyZone || lacksZone(all)) {
			keys = append(keys, key)
		}
	}
	return keys
}

// lacksZone reports whether an endpoint's zone is only in its node's labels.
func lacksZone(all []*discoveryv1.EndpointSlice) bool {
	return slices.ContainsFunc(all, func(slice *discoveryv1.EndpointSlice) bool {
		return slices.ContainsFunc(slice.Endpoints, func(e discoveryv1.Endpoint) bool { return e.Zone == nil && e.NodeName != nil })
	})
}

// place is the location of this node.
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
		return at.Name // as the slices name the other nodes; the label may differ
	case corev1.LabelTopologyZone:
		return at.Zone
	}
	return cmp.Or(at.Labels[key], at.nodes.label(at.Name, key))
}

// labelOf returns the value of a label of c's node.
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

// nearest returns the usable candidates on nodes with this node's value of the first key that matches any, and that
// key.
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
