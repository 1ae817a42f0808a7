package config

import (
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// Authors of objects determine the text that messages quote, and how often it changes. So messages about objects, in
// the log, in Events and in Reports, are limited.
const (
	MaxQuote   = 200  // bytes of a value
	MaxMessage = 1024 // bytes of a message
)

// Cut returns text, shortened to at most limit bytes, plus a note of the number of bytes cut. Valid UTF-8 stays valid.
func Cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	for n := limit; n > limit-utf8.UTFMax && n >= 0; n-- {
		if utf8.RuneStart(text[n]) {
			limit = n
			break
		}
	}
	return strings.Clone(text[:limit]) + fmt.Sprintf("… (%d bytes more)", len(text)-limit) // a clone, so that the rest can be freed
}

// Each namespace may have a burst of wordsAtOnce messages, and then one more every wordsEvery. Suppressed messages are
// counted; their number is reported reportInterval after the first one. Namespaces beyond maxSpeakers count as one.
const (
	wordsAtOnce    = 200
	wordsEvery     = 10 * time.Second
	reportInterval = time.Minute
	maxSpeakers    = 1000
)

// Words limits the rate of messages about the objects of each namespace. It is safe for concurrent use.
type Words struct {
	// LeftOut is called by a timer's goroutine with the number of messages about a namespace that were suppressed since
	// its last call. The namespace is "" for those beyond maxSpeakers.
	LeftOut func(namespace string, messages int)

	mu sync.Mutex
	of map[string]*words
}

// words is the state of a namespace.
type words struct {
	used    time.Time // when the full burst is available again, if no message comes before
	leftOut int
}

// Allow reports whether a message about an object in namespace is allowed now.
func (w *Words) Allow(namespace string, now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of == nil {
		w.of = map[string]*words{}
	}
	if w.of[namespace] == nil && len(w.of) >= maxSpeakers {
		for name, s := range w.of {
			if !s.used.After(now) && s.leftOut == 0 {
				delete(w.of, name)
			}
		}
		if len(w.of) >= maxSpeakers {
			namespace = "" // no namespace has this name
		}
	}
	s := w.of[namespace]
	if s == nil {
		s = &words{}
		w.of[namespace] = s
	}
	if s.used.Before(now) {
		s.used = now
	}
	if s.used.Sub(now) <= (wordsAtOnce-1)*wordsEvery {
		s.used = s.used.Add(wordsEvery)
		return true
	}
	if s.leftOut++; s.leftOut == 1 {
		time.AfterFunc(reportInterval, func() { w.report(namespace, s) })
	}
	return false
}

func (w *Words) report(namespace string, s *words) {
	w.mu.Lock()
	n := s.leftOut
	s.leftOut = 0
	w.mu.Unlock()
	w.LeftOut(namespace, n)
}
