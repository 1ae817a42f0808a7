package manifest

import (
	"errors"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config/strict"
)

// key identifies an object, as an API server would.
type key struct {
	kind string
	name types.NamespacedName
}

func (k key) String() string {
	if k.name.Name == "" {
		return k.kind
	}
	return k.kind + " " + k.name.String()
}

// object is an object that was read and has no mistakes. It is not changed any
// more.
type object struct {
	key
	place Diagnostic // where it was defined

	service *corev1.Service              // of a Service
	slices  []*discoveryv1.EndpointSlice // of an EndpointSlice, itself; of an Endpoints, its mirror images
}

// reading is what a file says.
type reading struct {
	objects []object

	// spoiled are the objects that have a mistake somewhere. There may be a
	// good definition of one of them too, in another document.
	spoiled []key

	// unreadable says that there is a document of which it is not known which
	// objects it defines.
	unreadable bool

	errors, warnings []Diagnostic
}

// read reads the contents of a file. The name of the file is used for the places
// of diagnostics, and to tell JSON by its ending.
func read(file string, data []byte, nets networks, maxSize int) reading {
	r := &reader{nets: nets, budget: new(atomic.Int64)}
	r.budget.Store(int64(maxSize))
	if len(data) > maxSize {
		r.fail(Diagnostic{File: file, Err: tooBig(maxSize)})
		return r.reading
	}
	if filepath.Ext(file) == ".json" { // the YAML parser would point at another place
		values, err := strict.JSONValues(data)
		if err != nil {
			r.unreadable = true
			r.syntax(Diagnostic{File: file}, *err)
		}
		for _, value := range values {
			r.value(Diagnostic{File: file, Document: 1}, value, header{}, false)
		}
		return r.reading
	}
	documents := strict.Split(data)
	r.share(len(documents), func(r *reader, i int) { r.document(file, documents[i]) })
	return r.reading
}

// reader builds a reading.
type reader struct {
	reading
	nets   networks
	budget *atomic.Int64      // what the file may still become when its aliases are written out
	words  map[string]*string // see compact
}

// share reads n pieces, by several readers if they are many: a cluster's state is
// one long List, or a file of as many documents, and to read it is most of what a
// start from files takes. What they have read is in the order of the pieces.
func (r *reader) share(n int, read func(r *reader, i int)) {
	if n < 2*worthAReader {
		for i := range n {
			read(r, i)
		}
		return
	}
	readers := make([]reader, min(runtime.GOMAXPROCS(0), n/worthAReader))
	var all sync.WaitGroup
	for k := range readers {
		readers[k].nets, readers[k].budget = r.nets, r.budget
		all.Go(func() {
			for i := k * n / len(readers); i < (k+1)*n/len(readers); i++ {
				read(&readers[k], i)
			}
		})
	}
	all.Wait()
	for k := range readers {
		r.add(&readers[k].reading)
	}
}

// worthAReader is how many pieces a reader of their own is worth.
const worthAReader = 1000

func (r *reader) document(file string, d strict.Document) {
	place := Diagnostic{File: file, Document: d.Number}
	values, errs := strict.ToJSON(d, r.budget)
	for _, err := range errs {
		r.syntax(named(place, values), err)
	}
	if len(values) == 0 {
		r.unreadable = true
	}
	for _, value := range values {
		r.value(place, value, header{}, len(errs) > 0)
	}
}

// named adds the object to a place if it is the only one there.
func named(place Diagnostic, values [][]byte) Diagnostic {
	if len(values) == 1 {
		if h, err := readHeader(values[0], header{}); err == nil && h.name.Name != "" {
			place.Object = key{h.Kind, h.name}.String()
		}
	}
	return place
}

// add takes over what another reader has read.
func (r *reader) add(more *reading) {
	r.objects = append(r.objects, more.objects...)
	for _, k := range more.spoiled {
		r.spoiledToo(k)
	}
	r.unreadable = r.unreadable || more.unreadable
	r.errors = append(r.errors, more.errors...)
	r.warnings = append(r.warnings, more.warnings...)
}

func (r *reader) spoiledToo(k key) {
	if !slices.Contains(r.spoiled, k) {
		r.spoiled = append(r.spoiled, k)
	}
}

// fail records an error that leaves unknown which object it concerns.
func (r *reader) fail(p Diagnostic) {
	r.unreadable = true
	r.errors = append(r.errors, p)
}

// syntax records an error in the syntax.
func (r *reader) syntax(place Diagnostic, err strict.SyntaxError) {
	place.Line = err.Line
	r.errors = append(r.errors, place.with(errors.New(err.Text)))
}

// spoil records errors of an object.
func (r *reader) spoil(k key, place Diagnostic, errs []error) {
	for _, err := range errs {
		r.errors = append(r.errors, place.with(err))
	}
	if k.name.Name == "" {
		r.unreadable = true
		return
	}
	r.spoiledToo(k)
}
