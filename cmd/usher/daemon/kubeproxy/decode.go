package kubeproxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
	kjson "sigs.k8s.io/json"

	"github.com/usherproxy/usher/config/strict"
)

// Required apiVersion and kind of a file.
const (
	APIVersion = "kubeproxy.config.k8s.io/v1alpha1"
	Kind       = "KubeProxyConfiguration"
)

// maxSize limits the size of a file with its YAML aliases expanded: the size limit of a
// ConfigMap.
const maxSize = 1 << 20

// parse returns the contents of a file as written, or all errors that it can
// detect.
func parse(text []byte) (doc map[string]any, errs []error) {
	var values [][]byte
	var budget atomic.Int64
	budget.Store(maxSize)
	for _, d := range strict.Split(text) {
		more, wrong := strict.ToJSON(d, &budget)
		values = append(values, more...)
		for _, err := range wrong {
			errs = append(errs, err)
		}
	}
	switch {
	case len(errs) > 0:
		return nil, errs
	case len(values) == 0:
		return nil, []error{fmt.Errorf("is empty: must contain a %s of %s", Kind, APIVersion)}
	case len(values) > 1:
		return nil, []error{fmt.Errorf("contains %d documents: must contain one %s of %s", len(values), Kind, APIVersion)}
	case values[0][0] != '{':
		return nil, []error{fmt.Errorf("is not a %s: must be an object", Kind)}
	}
	if errs, _ = strict.Decode(values[0], &doc); len(errs) > 0 {
		return nil, errs
	}
	return doc, checkKind(doc)
}

// decode returns the object that doc describes. Like kube-proxy it skips unknown fields:
// see ignored.
func decode(doc map[string]any) (*v1alpha1.KubeProxyConfiguration, []error) {
	c := &v1alpha1.KubeProxyConfiguration{}
	errs := checkTypes(doc)
	if err := decodeInto(c, doc); err != nil && errs == nil {
		errs = []error{err}
	}
	return c, errs
}

// checkKind returns errors with the required values if doc is another kind of object.
func checkKind(doc map[string]any) (errs []error) {
	for _, f := range []struct{ name, want string }{{"apiVersion", APIVersion}, {"kind", Kind}} {
		path := field.NewPath(f.name)
		switch got := doc[f.name]; got {
		case f.want:
		case nil:
			errs = append(errs, field.Required(path, "must be "+f.want))
		default:
			errs = append(errs, field.NotSupported(path, got, []string{f.want}))
		}
	}
	if len(errs) > 0 && doc["kind"] == "ConfigMap" {
		errs = append(errs, errors.New("is a ConfigMap: must be the file in its data, config.conf with kubeadm"))
	}
	return errs
}

// checkTypes returns an error for each value of the wrong type. It
// decodes each field separately, since a decoder stops at the first error and does not
// report the field of an invalid duration.
func checkTypes(doc map[string]any) (errs []error) {
	known := map[string]bool{}
	for path, value := range leaves(nil, doc) {
		err := checkType(path, value)
		if err != nil && !known[err.Error()] {
			known[err.Error()] = true
			errs = append(errs, err)
		}
	}
	return errs
}

func checkType(keys []string, value any) error {
	for _, key := range slices.Backward(keys) {
		value = map[string]any{key: value}
	}
	if decodeInto(&v1alpha1.KubeProxyConfiguration{}, value) == nil {
		return nil
	}
	t, depth := fieldType(keys)
	for _, key := range keys[:depth] {
		value = value.(map[string]any)[key]
	}
	return field.Invalid(field.NewPath(keys[0], keys[1:depth]...), value, "must be "+typeName(t))
}

// fieldType follows the path keys as far as its fields exist. It returns the type of the last
// one, and the number of keys that it followed.
func fieldType(keys []string) (t reflect.Type, depth int) {
	t = reflect.TypeFor[v1alpha1.KubeProxyConfiguration]()
	for _, key := range keys {
		next := elementType(t, key)
		if next == nil {
			break
		}
		t = next
		depth++
	}
	return t, depth
}

// elementType returns the type of a field or element; nil if t has none with this
// name.
func elementType(t reflect.Type, key string) reflect.Type {
	if t.Kind() == reflect.Map {
		return t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name == key && name != "" {
			if f.Type.Kind() == reflect.Pointer {
				return f.Type.Elem()
			}
			return f.Type
		}
	}
	return nil
}

// decodeInto decodes the values of a document. It skips fields that an object does not
// have.
func decodeInto(c *v1alpha1.KubeProxyConfiguration, doc any) error {
	value, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	return kjson.UnmarshalCaseSensitivePreserveInts(value, c)
}

// typeName returns the name of a Go type's YAML form.
func typeName(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[metav1.Duration](), reflect.TypeFor[logsapi.TimeOrMetaDuration]():
		return "a duration such as 30s or 1m30s"
	case reflect.TypeFor[resource.QuantityValue]():
		return "a quantity such as 64Ki"
	case reflect.TypeFor[[]string]():
		return "a list of strings"
	}
	if t.Kind() == reflect.Slice {
		return "a list of objects"
	}
	return strict.TypeName(t)
}
