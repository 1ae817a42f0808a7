package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"github.com/usherproxy/usher/config/strict"
	"github.com/usherproxy/usher/config/translate"
)

// header identifies the object in a value.
type header struct {
	APIVersion string
	Kind       string
	name       types.NamespacedName
}

// versions are the kinds that are read, each with its version; for slices v1beta1 is read, too.
var versions = map[schema.GroupKind]string{
	{Kind: "List"}:          "v1",
	{Kind: "Service"}:       "v1",
	{Kind: "ServiceList"}:   "v1",
	{Kind: "Endpoints"}:     "v1",
	{Kind: "EndpointsList"}: "v1",
	{Kind: "Node"}:          "v1",
	{Kind: "NodeList"}:      "v1",
	{Group: discoveryv1.GroupName, Kind: "EndpointSlice"}:     "v1",
	{Group: discoveryv1.GroupName, Kind: "EndpointSliceList"}: "v1",
	{Group: networkingv1.GroupName, Kind: "ServiceCIDR"}:      "v1",
	{Group: networkingv1.GroupName, Kind: "ServiceCIDRList"}:  "v1",
}

// value reads one JSON value, which is an object or a list of objects. If spoiled is set, the value already has an
// error: value then only reports more, and records the spoiled objects. Missing header fields are taken from defaults.
func (r *reader) value(place Diagnostic, value []byte, defaults header, spoiled bool) {
	if string(value) == "null" { // a template without output; kubectl skips it, too
		return
	}
	h, err := readHeader(value, defaults)
	if err != nil {
		r.addUnreadable(place.with(err))
		return
	}
	r.headed(place, value, h, spoiled)
}

// headed is value for a value whose header is known.
func (r *reader) headed(place Diagnostic, value []byte, h header, spoiled bool) {
	place.Object = key{h.Kind, h.name}.String()
	gv, err := schema.ParseGroupVersion(h.APIVersion)
	if err != nil {
		r.addUnreadable(place.with(field.Invalid(field.NewPath("apiVersion"), h.APIVersion, "must be a version or a group and a version, (e.g. v1 or discovery.k8s.io/v1)")))
		return
	}
	version, known := versions[schema.GroupKind{Group: gv.Group, Kind: h.Kind}]
	switch {
	case !known && meant(gv, h.Kind) != (schema.GroupVersionKind{}):
		want := meant(gv, h.Kind)
		if noNamespace[want.Kind] {
			h.name.Namespace = ""
			place.Object = key{h.Kind, h.name}.String()
		}
		wrong := field.NotSupported(field.NewPath("kind"), h.Kind, []string{want.Kind})
		if want.Kind == h.Kind {
			wrong = field.NotSupported(field.NewPath("apiVersion"), h.APIVersion, []string{want.GroupVersion().String()})
		}
		r.addObjectErrors(key{want.Kind, h.name}, place, []error{wrong})
	case !known:
		r.warnings = append(r.warnings, place.with(fmt.Errorf("%w: usher does not read %s of %s", errIgnored, h.Kind, h.APIVersion)))
	case gv.Version != version && h.APIVersion != v1beta1:
		want := schema.GroupVersion{Group: gv.Group, Version: version}.String()
		r.addObjectErrors(key{h.Kind, h.name}, place, []error{field.NotSupported(field.NewPath("apiVersion"), h.APIVersion, []string{want})})
	case strings.HasSuffix(h.Kind, "List"):
		r.list(place, value, h, spoiled)
	default:
		r.object(place, value, h, spoiled)
	}
}

// meant returns the kind that an author probably meant by a misspelled one: in the wrong case, or in another group that
// usher reads. Other groups, whose kinds may have the same names, have none.
func meant(gv schema.GroupVersion, kind string) schema.GroupVersionKind {
	if !slices.Contains([]string{"", discoveryv1.GroupName, networkingv1.GroupName}, gv.Group) {
		return schema.GroupVersionKind{}
	}
	for known, version := range versions {
		if strings.EqualFold(known.Kind, kind) {
			return known.WithVersion(version)
		}
	}
	return schema.GroupVersionKind{}
}

// noNamespace has the kinds whose objects have no namespace.
var noNamespace = map[string]bool{"Node": true, "ServiceCIDR": true}

// readHeader reads the header of value. It ignores errors in the metadata, which are found later.
func readHeader(value []byte, defaults header) (header, error) {
	var raw struct {
		APIVersion any             `json:"apiVersion"`
		Kind       any             `json:"kind"`
		Metadata   json.RawMessage `json:"metadata"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(value, &raw); err != nil || value[0] != '{' {
		return header{}, errors.New("must be an object with the fields apiVersion, kind and metadata")
	}
	h := defaults
	for _, f := range []struct {
		name  string
		value any
		into  *string
	}{{"apiVersion", raw.APIVersion, &h.APIVersion}, {"kind", raw.Kind, &h.Kind}} {
		s, ok := f.value.(string)
		switch {
		case ok && s != "":
			*f.into = s
		case f.value != nil && !ok:
			return header{}, field.TypeInvalid(field.NewPath(f.name), f.value, "must be a string")
		case *f.into == "":
			return header{}, field.Required(field.NewPath(f.name), "every manifest needs it; the file may be incomplete")
		}
	}
	h.name = readName(raw.Metadata)
	if noNamespace[h.Kind] {
		h.name.Namespace = ""
	}
	return h, nil
}

// readName reads the name of an object, and ignores errors.
func readName(metadata []byte) types.NamespacedName {
	var meta struct {
		Name      any `json:"name"`
		Namespace any `json:"namespace"`
	}
	_ = kjson.UnmarshalCaseSensitivePreserveInts(metadata, &meta)
	name, _ := meta.Name.(string)
	namespace, _ := meta.Namespace.(string)
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	return types.NamespacedName{Namespace: namespace, Name: name}
}

// list reads the objects of a List. The items of a ServiceList and the like need no header.
func (r *reader) list(place Diagnostic, value []byte, h header, spoiled bool) {
	place.Object = h.Kind
	var list struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        metav1.ListMeta   `json:"metadata"`
		Items           []json.RawMessage `json:"items"`
	}
	errs, _ := strict.Decode(value, &list)
	for _, err := range errs {
		r.addError(place.with(err))
	}
	if len(errs) > 0 && len(list.Items) == 0 {
		r.unreadable = true
	}
	var defaults header
	if kind := strings.TrimSuffix(h.Kind, "List"); kind != "" {
		defaults = header{APIVersion: h.APIVersion, Kind: kind}
	}
	r.share(len(list.Items), func(r *reader, i int) {
		r.listed(place, i, list.Items[i], defaults, spoiled || len(errs) > 0)
	})
}

// listed reads item i of a List.
func (r *reader) listed(list Diagnostic, i int, item []byte, defaults header, spoiled bool) {
	place := Diagnostic{File: list.File, Document: list.Document, Item: fmt.Sprintf("items[%d]", i)}
	var hash maphash.Hash
	hash.SetSeed(seed)
	_, _ = fmt.Fprintf(&hash, "%s %s %s", defaults.APIVersion, defaults.Kind, item) // never fails
	sum := hash.Sum64()
	if !spoiled {
		if same, is := r.known.LoadAndDelete(sum); is {
			o := same.(*object)
			if o.place.Item != place.Item { // the earlier reading still has o at its place
				moved := *o
				moved.place.Item, o = place.Item, &moved
			}
			r.objects = append(r.objects, o)
			return
		}
	}
	objects, warnings := len(r.objects), len(r.warnings)
	defer func() {
		if len(r.objects) > objects && len(r.warnings) == warnings {
			r.objects[objects].sum = sum
		}
	}()
	h, err := readHeader(item, defaults)
	if err == nil && strings.HasSuffix(h.Kind, "List") {
		err = errors.New("a list must not contain a list")
	}
	if err != nil {
		r.addUnreadable(place.with(err))
		return
	}
	r.headed(place, item, h, spoiled)
}

// object reads a Service, EndpointSlice, Endpoints, Node or ServiceCIDR.
func (r *reader) object(place Diagnostic, value []byte, h header, spoiled bool) {
	o := &object{key: key{h.Kind, h.name}, place: place}
	var errs []error
	switch h.Kind {
	case "Service":
		if o.service, errs = r.decodeService(value); len(errs) == 0 && !spoiled {
			trim(&o.service.ObjectMeta)
		}
	case "EndpointSlice":
		var slice *discoveryv1.EndpointSlice
		if slice, errs = decodeSlice(value, h.APIVersion); len(errs) == 0 {
			r.warnings = append(r.warnings, warnSlice(slice, h.APIVersion, place)...)
			trim(&slice.ObjectMeta)
			r.compact(slice)
		}
		o.slices = []*discoveryv1.EndpointSlice{slice}
	case "Endpoints":
		o.slices, errs = decodeEndpoints(value)
	case "Node":
		o.labels, errs = decodeNode(value)
	case "ServiceCIDR":
		var cidr *networkingv1.ServiceCIDR
		if cidr, errs = decode(value, func(*networkingv1.ServiceCIDR) {}, validateServiceCIDR); len(errs) == 0 {
			o.cidrs = cidr.Spec.CIDRs
		}
	}
	if spoiled || len(errs) > 0 {
		r.addObjectErrors(o.key, place, errs)
		return
	}
	r.objects = append(r.objects, o)
}

// decode reads an object, fills in its defaults and validates it. It returns as many errors as it can find at once;
// with errors the object is not usable.
func decode[T any](value []byte, setDefaults func(*T), validate func(*T) field.ErrorList) (*T, []error) {
	object := new(T)
	errs, decoded := strict.Decode(value, object)
	if !decoded {
		return nil, errs
	}
	setDefaults(object)
	return object, append(errs, translate.SumUp(validate(object))...)
}

// decodeService reads a Service. It converts a field of the API of Kubernetes 1.17 to 1.21 to the equivalent
// annotation.
func (r *reader) decodeService(value []byte) (*corev1.Service, []error) {
	svc := new(corev1.Service)
	errs, decoded := strict.Decode(value, svc)
	var old struct {
		Spec struct {
			TopologyKeys []string `json:"topologyKeys"`
		} `json:"spec"`
	}
	isOld := func(err error) bool { return err.Error() == `unknown field "spec.topologyKeys"` }
	if slices.ContainsFunc(errs, isOld) {
		errs = append(slices.DeleteFunc(errs, isOld), strict.DecodePart(value, &old)...)
	}
	if !decoded {
		return nil, errs
	}
	defaultService(svc)
	keys := old.Spec.TopologyKeys
	wrong := append(r.nets.validateService(svc), translate.ValidateTopologyKeys(svc, keys, field.NewPath("spec", "topologyKeys"))...)
	if len(keys) > 0 {
		metav1.SetMetaDataAnnotation(&svc.ObjectMeta, translate.AnnotationTopologyKeys, strings.Join(keys, ","))
	}
	return svc, append(errs, translate.SumUp(wrong)...)
}

// decodeNode reads the labels of a Node, and ignores the rest.
func decodeNode(value []byte) (map[string]string, []error) {
	var node struct {
		Metadata struct {
			Name   string            `json:"name"`
			Labels map[string]string `json:"labels"`
		} `json:"metadata"`
	}
	if errs := strict.DecodePart(value, &node); len(errs) > 0 {
		return nil, errs
	}
	path := field.NewPath("metadata")
	wrong := invalid(path.Child("name"), node.Metadata.Name, isNodeName(node.Metadata.Name))
	return node.Metadata.Labels, translate.SumUp(append(wrong, metavalidation.ValidateLabels(node.Metadata.Labels, path.Child("labels"))...))
}

// trim removes unused fields that can be large.
func trim(meta *metav1.ObjectMeta) {
	meta.ManagedFields = nil
	delete(meta.Annotations, corev1.LastAppliedConfigAnnotation)
}

// compact reduces the memory of slice: a file may contain tens of thousands, with a hundred thousand endpoints. Names
// of nodes, zones and namespaces repeat. A list that was read element by element has excess capacity. Of a reference,
// usher uses only the kind, namespace and name.
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

// word returns a pointer to a string that equals *w: the same one for all equal strings that r reads. The string is
// never changed.
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
