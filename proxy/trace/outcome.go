package trace

import (
	"time"

	"github.com/usherproxy/usher/config"
)

// Outcome says what was amiss with a connection: some of the bits, or none.
type Outcome uint8

// What may be amiss.
const (
	Retried  Outcome = 1 << iota // more than one attempt was made
	Slow                         // see Log.Keep
	Broken                       // it failed: see Life.Failed
	outcomes = iota
)

// OutcomeOK is the word for a connection with which nothing was amiss.
const OutcomeOK = "ok"

var outcomeWords = [outcomes]string{"retried", "slow", "failed"}

// OutcomeWords are all the words for outcomes.
func OutcomeWords() []string { return append([]string{OutcomeOK}, outcomeWords[:]...) }

// Words returns what people are told: "ok", or a word for each bit.
func (o Outcome) Words() (words []string) {
	for i, word := range outcomeWords {
		if o&(1<<i) != 0 {
			words = append(words, word)
		}
	}
	if words == nil {
		words = []string{OutcomeOK}
	}
	return words
}

// Failed reports whether a connection that ended like that had not come about, or was broken by
// its endpoint. A UDP session whose endpoint never answered, and never refused, is none: some
// protocols have no answers.
func (l *Life) Failed(end End) bool {
	switch end {
	case Idle, EndpointLeft, Withdrawn, Drained:
		return false
	}
	_, established := l.Established()
	return !established || end.Fault() == FaultEndpoint
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

// Outcome returns what is amiss with a connection that has lasted so long, and has ended as end
// says unless that is "".
func (l *Log) Outcome(life *Life, lasted time.Duration, end End) (o Outcome) {
	if life.Attempts() > 1 {
		o |= Retried
	}
	if l.slow > 0 && life.Waited(lasted) > l.slow {
		o |= Slow
	}
	if end != "" && life.Failed(end) {
		o |= Broken
	}
	return o
}
