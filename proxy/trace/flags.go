package trace

import (
	"time"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/outcome"
)

// Flags say what was amiss with a connection: some of the bits, or none.
type Flags uint8

// What may be amiss.
const (
	Retried Flags = 1 << iota // more than one attempt was made
	Slow                      // see Log.Keep
	Broken                    // it failed: see Life.Failed
	flags   = iota
)

// FlagsOK is the word for a connection with which nothing was amiss.
const FlagsOK = "ok"

var flagWords = [flags]string{"retried", "slow", "failed"}

// FlagWords returns the words for all flags, and the one for none.
func FlagWords() []string { return append([]string{FlagsOK}, flagWords[:]...) }

// Words returns what people are told: "ok", or a word for each bit.
func (f Flags) Words() (words []string) {
	for i, word := range flagWords {
		if f&(1<<i) != 0 {
			words = append(words, word)
		}
	}
	if words == nil {
		words = []string{FlagsOK}
	}
	return words
}

// Failed reports whether a connection that ended like that had not come about, or was broken by
// its endpoint. A UDP session whose endpoint never answered, and never refused, is none: some
// protocols have no answers.
func (l *Life) Failed(o outcome.Outcome) bool {
	switch o {
	case outcome.Idle, outcome.EndpointLeft, outcome.Withdrawn, outcome.Drained:
		return false
	}
	_, established := l.Established()
	return !established || o.Fault() == outcome.FaultEndpoint
}

// Waited returns how long the client has waited for the endpoint's first byte or, while none has
// come, until there was an endpoint; while there is none either, how long it has lasted. Of a UDP session
// that is not answered it is 0: some protocols have no answers.
func (l *Life) Waited(lasted time.Duration) time.Duration {
	switch first := l.firstByte.Load(); {
	case first > adopted:
		return time.Duration(first)
	case first == adopted, l.Service != nil && l.Service.Protocol == config.UDP:
		return 0
	}
	if t, ok := l.Established(); ok {
		return t.Began + t.Took
	}
	return lasted
}

// Flags returns what is amiss with a connection that has lasted so long, and has ended as o
// says unless that is Open.
func (l *Log) Flags(life *Life, lasted time.Duration, o outcome.Outcome) (f Flags) {
	if life.Attempts() > 1 {
		f |= Retried
	}
	if l.slow > 0 && life.Waited(lasted) > l.slow {
		f |= Slow
	}
	if o != outcome.Open && life.Failed(o) {
		f |= Broken
	}
	return f
}
