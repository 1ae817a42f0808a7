package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/usherproxy/usher/proxy/admin"
	"github.com/usherproxy/usher/proxy/admin/api"
)

// maxRequest bounds the body of a request, in bytes.
const maxRequest = 4 << 10

// Handler returns a handler that answers the demo's routes of usher's API and leaves
// the others to next.
func (list backends) Handler(next http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", next)
	mux.HandleFunc("GET "+api.DemoEndpointsPath, list.answerEndpoints)
	mux.HandleFunc("POST "+api.DemoBreakPath, ownPagesOnly(list.answerBreak))
	mux.HandleFunc("POST "+api.DemoRepairPath, ownPagesOnly(list.answerRepair))
	return mux
}

// ownPagesOnly rejects requests that a page of another site may have sent: a browser sends
// a custom header to another site only if the server has agreed, which this server never
// does.
func ownPagesOnly(next http.HandlerFunc) http.HandlerFunc {
	origins := http.NewCrossOriginProtection()
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(api.DemoHeader) == "" {
			admin.WriteError(w, http.StatusForbidden, "the header "+api.DemoHeader+": 1 is required")
			return
		}
		if err := origins.Check(r); err != nil {
			admin.WriteError(w, http.StatusForbidden, "only pages served by the demo may do this: "+err.Error())
			return
		}
		next(w, r)
	}
}

func (list backends) answerEndpoints(w http.ResponseWriter, _ *http.Request) {
	admin.WriteJSON(w, http.StatusOK, list.describe())
}

func (list backends) describe() api.DemoEndpointList {
	items := []api.DemoEndpoint{}
	for _, b := range list {
		items = append(items, b.describe())
	}
	return api.DemoEndpointList{Page: api.Page{Total: len(items)}, Items: items}
}

func (list backends) answerBreak(w http.ResponseWriter, r *http.Request) {
	var what api.DemoBreak
	if !readJSON(w, r, &what) {
		return
	}
	b := list.named(w, what.Endpoint)
	switch {
	case b == nil:
		return
	case what.How == "":
		admin.WriteError(w, http.StatusBadRequest, "how: value is required: must be one of "+strings.Join(Faults(b.service.protocol), ", "))
		return
	}
	if err := b.setFault(what.How); err != nil {
		admin.WriteError(w, http.StatusBadRequest, err.Error())
		return
	}
	admin.WriteJSON(w, http.StatusOK, b.describe())
}

func (list backends) answerRepair(w http.ResponseWriter, r *http.Request) {
	var what api.DemoRepair
	if !readJSON(w, r, &what) {
		return
	}
	repair := list
	if !what.All {
		b := list.named(w, what.Endpoint)
		if b == nil {
			return
		}
		repair = backends{b}
	}
	for _, b := range repair {
		if err := b.setFault(""); err != nil {
			admin.WriteError(w, http.StatusInternalServerError, err.Error())
			return
		}
	}
	admin.WriteJSON(w, http.StatusOK, repair.describe())
}

// named returns the server called name. If there is none, it responds with an error and
// returns nil.
func (list backends) named(w http.ResponseWriter, name string) *backend {
	b := list.find(name)
	if b == nil {
		var names []string
		for _, other := range list {
			names = append(names, other.name)
		}
		admin.WriteError(w, http.StatusNotFound, fmt.Sprintf("endpoint: unknown endpoint %q: must be one of %s", name, strings.Join(names, ", ")))
	}
	return b
}

// readJSON reads the body into what. If the body is invalid, it responds with an error and
// returns false.
func readJSON(w http.ResponseWriter, r *http.Request, what any) bool {
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(what)
	if err == nil && decoder.Decode(&struct{}{}) != io.EOF {
		err = fmt.Errorf("unexpected data after the object")
	}
	if err != nil {
		admin.WriteError(w, http.StatusBadRequest, "invalid body: "+err.Error())
	}
	return err == nil
}
