package config

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Report is a fault of an object, found by a source.
type Report struct {
	Object  string               // "Service default/web", or the file
	Service types.NamespacedName // the Service concerned; zero if unknown
	Reason  string               // one word, in CamelCase
	Message string               // the place, the fault, and the allowed values
	Remedy  string               // the recommended action; "" if the message implies it
	Since   time.Time            // when it was found
	Served  bool                 // the object is served anyway
}

// maxReports is the maximum number of Reports of each reporter, and maxReporters that of reporters. The log may contain
// more.
const (
	maxReports   = 5
	maxReporters = 1000
)

// Reports holds the current Reports of all reporters. It is safe for concurrent use. Set on a nil Reports does nothing.
type Reports struct {
	mu sync.Mutex
	of map[string][]Report // by reporter
}

// Set replaces the Reports of one reporter, a Service or a file. Beyond maxReporters, it prefers unserved objects.
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

// pushOutLocked removes a reporter whose objects are all served, if any, for the Reports of unserved ones.
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

// All returns all current Reports.
func (r *Reports) All() (all []Report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, list := range r.of {
		all = append(all, list...)
	}
	return all
}
