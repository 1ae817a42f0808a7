package kubeproxy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strings"

	yaml3 "go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// What a file has to be.
const (
	APIVersion = "kubeproxy.config.k8s.io/v1alpha1"
	Kind       = "KubeProxyConfiguration"
)

// parse returns what a file says, as it was written; or every mistake that can be
// found.
func parse(text []byte) (map[string]any, []error) {
	value, errs := toJSON(text)
	if len(errs) > 0 {
		return nil, errs
	}
	var doc map[string]any
	d := json.NewDecoder(bytes.NewReader(value))
	d.UseNumber()
	if err := d.Decode(&doc); err != nil || doc == nil {
		return nil, []error{fmt.Errorf("is not a %s, which is an object with fields", Kind)}
	}
	return doc, checkKind(doc)
}

// decode returns the object that doc stands for. Unknown fields are left out, as
// kube-proxy does: see ignored.
func decode(doc map[string]any) (*v1alpha1.KubeProxyConfiguration, []error) {
	if errs := checkTypes(doc); len(errs) > 0 {
		return nil, errs
	}
	c := &v1alpha1.KubeProxyConfiguration{}
	if _, err := decodeInto(c, doc); err != nil {
		return nil, []error{err}
	}
	return c, nil
}

// toJSON returns the one document of a file as JSON, which may be in JSON or
// YAML.
func toJSON(text []byte) ([]byte, []error) {
	if trimmed := bytes.TrimSpace(text); len(trimmed) > 0 && trimmed[0] == '{' && json.Valid(trimmed) {
		return trimmed, jsonDuplicates(trimmed)
	}
	var documents []*yaml3.Node
	for d := yaml3.NewDecoder(bytes.NewReader(text)); ; {
		var root yaml3.Node
		err := d.Decode(&root)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, []error{err}
		}
		if !isNull(&root) {
			documents = append(documents, &root)
		}
	}
	switch len(documents) {
	case 1:
	case 0:
		return nil, []error{fmt.Errorf("is empty; a %s of %s is expected", Kind, APIVersion)}
	default:
		return nil, []error{fmt.Errorf("holds %d documents; one %s of %s is expected", len(documents), Kind, APIVersion)}
	}
	if errs := duplicates(documents[0], ""); len(errs) > 0 {
		return nil, errs
	}
	// The document alone, for the parser that Kubernetes uses: it takes the
	// first of a file.
	alone, err := yaml3.Marshal(documents[0])
	if err != nil {
		return nil, []error{err}
	}
	value, err := yaml.YAMLToJSON(alone)
	if err != nil {
		return nil, []error{err}
	}
	return value, nil
}

func isNull(n *yaml3.Node) bool {
	if n.Kind == yaml3.DocumentNode {
		return len(n.Content) == 0 || isNull(n.Content[0])
	}
	return n.Kind == 0 || n.Tag == "!!null"
}

// duplicates finds keys that stand twice in one map.
func duplicates(n *yaml3.Node, path string) (errs []error) {
	if n.Kind != yaml3.MappingNode {
		for _, child := range n.Content {
			errs = append(errs, duplicates(child, path)...)
		}
		return errs
	}
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		at := strings.TrimPrefix(path+"."+key.Value, ".")
		if first, ok := lines[key.Value]; ok {
			errs = append(errs, fmt.Errorf("line %d: %s: duplicate field, it is in line %d already", key.Line, at, first))
		}
		lines[key.Value] = key.Line
		errs = append(errs, duplicates(n.Content[i+1], at)...)
	}
	return errs
}

var duplicateField = regexp.MustCompile(`^duplicate field "(.*)"$`)

func jsonDuplicates(value []byte) (errs []error) {
	strict, _ := kjson.UnmarshalStrict(value, new(map[string]any))
	for _, err := range strict {
		if m := duplicateField.FindStringSubmatch(err.Error()); m != nil {
			errs = append(errs, fmt.Errorf("%s: duplicate field", m[1]))
		}
	}
	return errs
}

// checkKind says what is allowed if doc is something else.
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
		errs = append(errs, errors.New("this is a whole ConfigMap; what is expected is the file in its data, which kubeadm calls config.conf"))
	}
	return errs
}

// checkTypes finds values that have the wrong type. It
// decodes each field by itself, since a decoder stops at the first mistake, and
// does not say which field a duration belongs to.
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
	if _, err := decodeInto(&v1alpha1.KubeProxyConfiguration{}, value); err == nil {
		return nil
	}
	t, depth := fieldType(keys)
	for _, key := range keys[:depth] {
		value = value.(map[string]any)[key]
	}
	return field.Invalid(field.NewPath(keys[0], keys[1:depth]...), value, "must be "+typeName(t))
}

// fieldType returns the type of the field to which keys lead, and how many of
// the keys that takes.
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

// elementType returns the type of a field or element; nil if t has none of that
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

// decodeInto decodes the values of a document. unknown is not empty if there are
// fields that an object does not have.
func decodeInto(c *v1alpha1.KubeProxyConfiguration, doc any) (unknown []error, err error) {
	value, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	return kjson.UnmarshalStrict(value, c)
}

// typeName says what a value of a Go type is written as.
func typeName(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[metav1.Duration](), reflect.TypeFor[logsapi.TimeOrMetaDuration]():
		return "a duration such as 30s or 1m30s"
	case reflect.TypeFor[resource.QuantityValue]():
		return "a quantity such as 64Ki"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int32:
		return "a whole number of 32 bits"
	case reflect.Uint32:
		return "a whole number of 32 bits that is not negative"
	case reflect.Float32:
		return "a number"
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Struct {
			return "a list of objects"
		}
		return "a list of strings"
	case reflect.Map, reflect.Struct:
		return "an object"
	}
	return "a string"
}
