package config

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Report is something that a source has found wrong with an object.
type Report struct {
	Object  string               // "Service default/web", or the file
	Service types.NamespacedName // the one that it is about; zero if that is not known
	Reason  string               // one word
	Message string               // where it is, what is wrong, and what is allowed
	Remedy  string               // what to do; "" if that follows from the message
	Since   time.Time            // when it was found
	Served  bool                 // what it is about is served all the same
}

// maxReports is how many Reports are kept of each Service, maxReporters of how many Services, or
// other objects. The log tells all.
const (
	maxReports   = 5
	maxReporters = 1000
)

// Reports are those that hold now. Any goroutine may use them; nil takes none.
type Reports struct {
	mu sync.Mutex
	of map[string][]Report // by who reports
}

// Set replaces what is wrong according to one who reports: of a Service, or of a file.
func (r *Reports) Set(by string, now time.Time, list []Report) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.of[by]
	if len(list) == 0 {
		delete(r.of, by)
		return
	}
	if r.of == nil {
		r.of = map[string][]Report{}
	}
	if before == nil && len(r.of) >= maxReporters && (served(list) || !r.pushOutLocked()) {
		return
	}
	kept := make([]Report, min(len(list), maxReports))
	for i := range kept {
		kept[i] = list[i]
		kept[i].Message = Cut(list[i].Message, MaxMessage)
		kept[i].Since = now
		for _, old := range before {
			if old.Message == kept[i].Message {
				kept[i].Since = old.Since
			}
		}
	}
	r.of[by] = kept
}

// pushOutLocked makes room for what is not served, if anybody reports what is.
func (r *Reports) pushOutLocked() bool {
	for by, list := range r.of {
		if served(list) {
			delete(r.of, by)
			return true
		}
	}
	return false
}

func served(list []Report) bool {
	return !slices.ContainsFunc(list, func(r Report) bool { return !r.Served })
}

// All returns them.
func (r *Reports) All() (all []Report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, list := range r.of {
		all = append(all, list...)
	}
	return all
}
