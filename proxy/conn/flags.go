package conn

import (
	"time"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy/outcome"
)

// Flags are the problems of a connection, as bits.
type Flags uint8

const (
	Retried    Flags = 1 << iota // more than one attempt was made
	Slow                         // the client waited longer than Port.Slow
	Broken                       // it failed: see Record.Failed
	Unanswered                   // the client got no response: see outcome.NoResponse
	flags      = iota
)

// FlagsOK is the word for a connection without problems.
const FlagsOK = "ok"

var flagWords = [flags]string{"retried", "slow", "failed", outcome.NoResponse.String()}

// FlagWords returns FlagsOK and the words for all flags.
func FlagWords() []string { return append([]string{FlagsOK}, flagWords[:]...) }

// Words returns the words shown to users: "ok", or a word for each bit.
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

// Failed reports whether a connection with this outcome was never established, or was reset by its endpoint. It returns
// false for clients that usher did not serve because it stopped. It also returns false for UDP sessions that were idle
// or evicted, or lost their endpoint or VIP, since some protocols have no answers.
func (r *Record) Failed(o outcome.Outcome) bool {
	switch o {
	case outcome.Idle, outcome.EndpointRemoved, outcome.VIPRemoved, outcome.Drained:
		return false
	case outcome.Limit:
		all := r.Attempts()
		if r.Port.Protocol == config.UDP && len(all) > 0 && all[len(all)-1].Result == NoAnswer { // evicted
			return false
		}
	}
	return r.established.Load() == 0 || o.Fault() == outcome.FaultEndpoint
}

// Waited returns the time that the client waited for the endpoint's first byte. Before that byte, it is the time until
// an endpoint was connected; without an endpoint, it is the parameter lasted. It is 0 if the time is unknown, and for
// an unanswered UDP session: some protocols have no answers.
func (r *Record) Waited(lasted time.Duration) time.Duration {
	switch first := r.firstByte.Load(); {
	case first > unknownFirstByte:
		return time.Duration(first)
	case first == unknownFirstByte, r.Port.Protocol == config.UDP:
		return 0
	}
	if at := r.established.Load(); at > 0 {
		return time.Duration(at)
	}
	return lasted
}

// Flags returns the problems of a connection of duration lasted that has ended with o, or is open if o is Open.
func (r *Record) Flags(lasted time.Duration, o outcome.Outcome) (f Flags) {
	if all := r.attempts.Load(); all != nil && len(*all) > 1 {
		f |= Retried
	}
	if slow := r.Port.Slow; slow > 0 && lasted > slow && r.Waited(lasted) > slow {
		f |= Slow
	}
	if o != outcome.Open && r.Failed(o) {
		f |= Broken
	}
	if o == outcome.NoResponse {
		f |= Unanswered
	}
	return f
}
