package manifest

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// compact makes slice take less memory, of which there may be tens of thousands
// with a hundred thousand endpoints: names of nodes, zones and namespaces are the
// same again and again, a list that was read element by element has room for
// more, and of what an endpoint refers to only the name is of use.
func (r *reader) compact(slice *discoveryv1.EndpointSlice) {
	slice.Endpoints = slices.Clip(slices.Clone(slice.Endpoints))
	slice.Namespace = *r.word(&slice.Namespace)
	for i := range slice.Endpoints {
		e := &slice.Endpoints[i]
		e.NodeName, e.Zone = r.word(e.NodeName), r.word(e.Zone)
		e.Addresses = slices.Clip(slices.Clone(e.Addresses))
		if ref := e.TargetRef; ref != nil {
			e.TargetRef = &corev1.ObjectReference{Kind: *r.word(&ref.Kind), Namespace: *r.word(&ref.Namespace), Name: ref.Name}
		}
	}
}

// word returns a pointer to the string that w points to, the same one for all
// that are equal in the file. Nobody changes what it points to.
func (r *reader) word(w *string) *string {
	if w == nil {
		return nil
	}
	if r.words == nil {
		r.words = map[string]*string{}
	}
	if r.words[*w] == nil {
		word := *w
		r.words[word] = &word
	}
	return r.words[*w]
}
