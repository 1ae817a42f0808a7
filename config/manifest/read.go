package manifest

import (
	"errors"
	"hash/maphash"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config/strict"
	"github.com/usherproxy/usher/config/translate"
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
	return k.kind + " " + strings.TrimPrefix(k.name.String(), "/")
}

// object is an object that was read without errors. Its content does not change.
type object struct {
	key
	place Diagnostic // the place of its definition, which moves with its document
	at    int        // its index in its file, for the resolver
	sum   uint64     // of its text, if it is an item of a List and can be reused; otherwise 0

	service *corev1.Service              // of a Service
	slices  []*discoveryv1.EndpointSlice // an EndpointSlice itself, or the mirrors of an Endpoints
	labels  map[string]string            // of a Node
	cidrs   []string                     // of a ServiceCIDR
}

// reading is the content of a file, or a part of it.
type reading struct {
	objects []*object

	// spoiled are the objects with an error in a definition. Another document may contain a valid definition.
	spoiled map[key]bool

	// unreadable says that a document's objects are unknown.
	unreadable bool

	errors, warnings []Diagnostic

	documents []document // of a file
}

// document is the content of a document of a file.
type document struct {
	sum  uint64 // of its text
	keep bool   // the same text has the same result, anywhere in the file
	reading
}

var seed = maphash.MakeSeed()

// read reads the contents of a file. The file's name is used for the places of diagnostics, and its extension to detect
// JSON. Documents and items of Lists that are also in known, an earlier reading, are not decoded again: they keep their
// objects.
func read(file string, data []byte, known reading, nets networks, maxSize int) reading {
	r := &reader{nets: nets, budget: new(atomic.Int64), known: new(sync.Map)}
	for _, o := range slices.Backward(known.objects) {
		if o.sum != 0 {
			r.known.Store(o.sum, o)
		}
	}
	r.budget.Store(int64(maxSize))
	if len(data) > maxSize {
		r.addUnreadable(Diagnostic{File: file, Err: tooBig(maxSize)})
		return r.reading
	}
	if filepath.Ext(file) == ".json" { // the YAML parser would report another place
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
	had := make(map[uint64]*document, len(known.documents))
	for i := range known.documents {
		if d := &known.documents[i]; d.keep {
			had[d.sum] = d
		}
	}
	texts := strict.Split(data)
	documents := make([]document, len(texts))
	var differ []int
	for i := range texts {
		sum := maphash.Bytes(seed, texts[i].Text)
		if d := had[sum]; d != nil {
			documents[i] = *d
			delete(had, sum)
			for _, o := range d.objects {
				if o.sum != 0 {
					r.known.CompareAndDelete(o.sum, o)
				}
			}
			continue
		}
		documents[i].sum = sum
		differ = append(differ, i)
	}
	r.share(len(differ), func(r *reader, n int) {
		d, text := &documents[differ[n]], texts[differ[n]]
		d.reading = r.document(file, text)
		d.keep = len(d.errors) == 0 && !d.unreadable && !text.Aliases()
	})
	for i := range documents {
		for n, warning := range documents[i].warnings {
			warning.Document = i + 1
			documents[i].warnings[n] = warning
		}
		r.add(&documents[i].reading)
	}
	r.documents = documents
	return r.reading
}

// renumber updates the document numbers in the places of the objects, whose documents may have moved.
func (r *reading) renumber() {
	for i := range r.documents {
		for _, o := range r.documents[i].objects {
			o.place.Document = i + 1
		}
	}
}

// reader builds a reading.
type reader struct {
	reading
	nets   networks
	budget *atomic.Int64      // remaining bytes for expanding the file's aliases
	known  *sync.Map          // earlier List items: each *object by its sum, until it is used
	words  map[string]*string // see compact
}

// share calls read for n pieces, with several readers in parallel if there are many. The results are in the order of
// the pieces. A cluster's state is one long List, or a file of many documents, and takes most of the time of a start.
func (r *reader) share(n int, read func(r *reader, i int)) {
	if n < 2*worthAReader {
		for i := range n {
			read(r, i)
		}
		return
	}
	readers := make([]reader, min(runtime.GOMAXPROCS(0), n/worthAReader))
	translate.Parallel(len(readers), func(k int) {
		readers[k].nets, readers[k].budget, readers[k].known = r.nets, r.budget, r.known
		for i := k * n / len(readers); i < (k+1)*n/len(readers); i++ {
			read(&readers[k], i)
		}
	})
	for k := range readers {
		r.add(&readers[k].reading)
	}
}

// worthAReader is the number of pieces for each additional reader.
const worthAReader = 1000

func (r *reader) document(file string, d strict.Document) reading {
	before := r.reading
	defer func() { r.reading = before }()
	r.reading = reading{}
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
	return r.reading
}

// named returns place with the name of the object, if there is only one value.
func named(place Diagnostic, values [][]byte) Diagnostic {
	if len(values) == 1 {
		if h, err := readHeader(values[0], header{}); err == nil && h.name.Name != "" {
			place.Object = key{h.Kind, h.name}.String()
		}
	}
	return place
}

// add adds another reader's result.
func (r *reader) add(more *reading) {
	r.objects = append(r.objects, more.objects...)
	for k := range more.spoiled {
		r.spoiledToo(k)
	}
	r.unreadable = r.unreadable || more.unreadable
	r.errors = append(r.errors, more.errors...)
	r.warnings = append(r.warnings, more.warnings...)
}

func (r *reader) spoiledToo(k key) {
	if r.spoiled == nil {
		r.spoiled = map[key]bool{}
	}
	r.spoiled[k] = true
}

// addUnreadable records an error whose object is unknown.
func (r *reader) addUnreadable(p Diagnostic) {
	r.unreadable = true
	r.errors = append(r.errors, p)
}

func (r *reader) syntax(place Diagnostic, err strict.SyntaxError) {
	place.Line = err.Line
	r.addError(place.with(errors.New(err.Text)))
}

// ambiguous matches an error about a duplicate field that determines which objects a value defines.
var ambiguous = regexp.MustCompile(`^duplicate field "(items\[\d+\]\.)?(apiVersion|kind|metadata|metadata\.name|metadata\.namespace|items)"`)

// addError records an error. If it is ambiguous, the objects of the value are unknown.
func (r *reader) addError(p Diagnostic) {
	r.unreadable = r.unreadable || ambiguous.MatchString(p.Err.Error())
	r.errors = append(r.errors, p)
}

func (r *reader) addObjectErrors(k key, place Diagnostic, errs []error) {
	for _, err := range errs {
		r.addError(place.with(err))
	}
	if k.name.Name == "" {
		r.unreadable = true
		return
	}
	r.spoiledToo(k)
}
