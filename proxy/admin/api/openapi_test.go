package api_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/proxy/admin/api"
)

// update makes the test write the descriptions instead of comparing them ("make generate").
var update = flag.Bool("update", false, "write openapi.json and cluster.json")

func TestAPI(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "api")
}

var _ = Describe("openapi.json", func() {
	DescribeTable("matches the structs and routes", func(file string, is []byte, title, prefix string, routes []api.Route) {
		want, err := json.MarshalIndent(newDescription().openAPI(title, prefix, routes), "", "  ")
		Expect(err).NotTo(HaveOccurred())
		want = append(want, '\n')
		if *update {
			Expect(os.WriteFile(file, want, 0o644)).To(Succeed())
			return
		}
		Expect(bytes.Equal(is, want)).To(BeTrue(), "the file is out of date: run make generate")
	},
		Entry("of a node", "openapi.json", api.OpenAPI, "usher admin API", api.Prefix, api.Routes),
		Entry("of a cluster", "cluster.json", api.ClusterOpenAPI, "usher cluster API", api.ClusterPrefix, api.ClusterRoutes),
	)

	It("declares all path parameters as required", func() {
		for _, r := range slices.Concat(api.Routes, api.ClusterRoutes) {
			for _, name := range regexp.MustCompile(`\{(\w+)\}`).FindAllStringSubmatch(r.Path, -1) {
				Expect(slices.ContainsFunc(r.Params, func(p api.Param) bool { return p.In == "path" && p.Name == name[1] && p.Required })).
					To(BeTrue(), "%s: {%s}", r.Path, name[1])
			}
		}
	})
})

type object = map[string]any

// description collects the contents of openapi.json from the structs and from the comments in their source.
type description struct {
	comments map[string]string   // by "Type" and "Type.Field"
	enums    map[string][]string // values of named string types
	schemas  object
}

func newDescription() *description {
	d := &description{comments: map[string]string{}, enums: map[string][]string{}, schemas: object{}}
	files := token.NewFileSet()
	entries, err := os.ReadDir(".")
	Expect(err).NotTo(HaveOccurred())
	var parsed []*ast.File
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".go") && !strings.HasSuffix(e.Name(), "_test.go") {
			f, err := parser.ParseFile(files, e.Name(), nil, parser.ParseComments)
			Expect(err).NotTo(HaveOccurred())
			parsed = append(parsed, f)
		}
	}
	p, err := doc.NewFromFiles(files, parsed, "api", doc.PreserveAST)
	Expect(err).NotTo(HaveOccurred())
	for _, t := range p.Types {
		d.comments[t.Name] = oneLine(t.Doc)
		for _, c := range t.Consts {
			d.readEnum(t.Name, c.Decl)
		}
		s, ok := t.Decl.Specs[0].(*ast.TypeSpec).Type.(*ast.StructType)
		if !ok {
			continue
		}
		for _, f := range s.Fields.List {
			for _, name := range f.Names {
				d.comments[t.Name+"."+name.Name] = oneLine(f.Doc.Text() + " " + f.Comment.Text())
			}
		}
	}
	return d
}

func (d *description) readEnum(name string, decl *ast.GenDecl) {
	for _, spec := range decl.Specs {
		v := spec.(*ast.ValueSpec)
		value := strings.Trim(v.Values[0].(*ast.BasicLit).Value, `"`)
		d.enums[name] = append(d.enums[name], value)
		if text := oneLine(v.Comment.Text()); text != "" {
			d.comments[name] += " " + value + ": " + text + "."
		}
	}
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

func (d *description) openAPI(title, prefix string, routes []api.Route) object {
	paths := object{}
	failed := object{"description": "what is wrong", "content": object{"application/json": object{"schema": d.schema(reflect.TypeFor[api.Error]())}}}
	for _, r := range routes {
		var params []object
		for _, p := range r.Params {
			schema := object{"type": p.Type}
			if len(p.Enum) > 0 {
				schema["enum"] = p.Enum
			}
			params = append(params, object{"name": p.Name, "in": p.In, "description": p.Text, "required": p.Required, "schema": schema})
		}
		kind := "application/json"
		if r.Stream {
			kind = "text/event-stream"
			d.schema(reflect.TypeFor[api.Hello]())
			d.schema(reflect.TypeFor[api.Missed]())
		}
		get := object{"summary": r.Summary, "responses": object{
			"200":     object{"description": r.Summary, "content": object{kind: object{"schema": d.schema(reflect.TypeOf(r.Answer))}}},
			"default": failed,
		}}
		if params != nil {
			get["parameters"] = params
		}
		paths[prefix+r.Path] = object{"get": get}
	}
	return object{
		"openapi":    "3.0.3",
		"info":       object{"title": title, "version": "v1", "description": "Read-only. Fields and values are added over time and never renamed; skip what you do not know."},
		"paths":      paths,
		"components": object{"schemas": d.schemas},
	}
}

// schema returns the schema of t. For a struct it adds the schema to d.schemas and returns a reference.
func (d *description) schema(t reflect.Type) object {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return object{"type": "string", "format": "date-time"}
	case t.Kind() == reflect.Pointer:
		return d.schema(t.Elem())
	case t.Kind() == reflect.Slice:
		return object{"type": "array", "items": d.schema(t.Elem())}
	case t.Kind() == reflect.Map:
		return object{"type": "object", "additionalProperties": d.schema(t.Elem())}
	case t.Kind() == reflect.String:
		s := object{"type": "string"}
		if values := d.enums[t.Name()]; t.PkgPath() != "" && values != nil {
			s["enum"] = values
			s["description"] = d.comments[t.Name()]
		}
		return s
	case t.Kind() == reflect.Bool:
		return object{"type": "boolean"}
	case t.Kind() == reflect.Float64:
		return object{"type": "number"}
	case t.Kind() == reflect.Int64, t.Kind() == reflect.Uint64:
		return object{"type": "integer", "format": "int64"}
	case t.Kind() == reflect.Int, t.Kind() == reflect.Uint16:
		return object{"type": "integer"}
	}
	Expect(t.Kind()).To(Equal(reflect.Struct))
	if d.schemas[t.Name()] == nil {
		properties, required := object{}, []string{}
		d.schemas[t.Name()] = object{} // a struct may contain itself
		d.addFields(t, properties, &required)
		slices.Sort(required)
		d.schemas[t.Name()] = object{"type": "object", "description": d.comments[t.Name()], "properties": properties, "required": required}
	}
	return object{"$ref": "#/components/schemas/" + t.Name()}
}

func (d *description) addFields(t reflect.Type, properties object, required *[]string) {
	for f := range t.Fields() {
		if f.Anonymous {
			d.addFields(f.Type, properties, required)
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		Expect(name).To(MatchRegexp(`^[a-z][A-Za-z0-9]*$`), "%s.%s", t.Name(), f.Name)
		schema := d.schema(f.Type)
		text := d.comments[t.Name()+"."+f.Name]
		switch {
		case text != "" && schema["$ref"] != nil: // no other key is allowed next to $ref
			schema = object{"allOf": []object{schema}, "description": text}
		case text != "":
			schema["description"] = text
		}
		properties[name] = schema
		if options == "" {
			*required = append(*required, name)
		}
	}
}
