// Package outcome defines the ways in which connections and UDP sessions end. The API, metrics, logs and docs use the
// same words for them. The code that ends a connection makes a [Result]; all other code only reads it.
package outcome

import "time"

// Outcome is the way in which a connection or UDP session ended.
type Outcome uint8

// Values of Outcome; Meaning describes them.
const (
	Open Outcome = iota // not ended
	ClientClosed
	EndpointClosed
	ClientReset
	EndpointReset
	NoResponse
	HalfClosed
	NoEndpoint
	AttemptsFailed
	QueueTimeout
	BypassedPortal
	SourceDenied
	ProxyHeaderInvalid
	Limit
	Drained
	MaxAge
	Idle
	EndpointDrained
	EndpointRemoved
	VIPRemoved
	Internal

	Outcomes = iota // number of values, Open included
)

// Fault is the party that caused an outcome.
type Fault string

// Values of Fault.
const (
	FaultNone     Fault = "none" // a normal end
	FaultClient   Fault = "client"
	FaultEndpoint Fault = "endpoint"
	FaultPolicy   Fault = "policy" // the configuration refused or ended the connection
	FaultNode     Fault = "node"   // limits and shutdown
	FaultUsher    Fault = "usher"
)

// words has the texts for each Outcome in the API, metrics, logs and docs; docs/reference.md has the same table. Do not
// change a word: users' alerts and scripts contain it.
var words = [Outcomes]struct {
	word    string
	fault   Fault
	meaning string
}{
	Open:               {"", FaultNone, ""},
	ClientClosed:       {"client-closed", FaultNone, "both directions ended, the client's first"},
	EndpointClosed:     {"endpoint-closed", FaultNone, "both directions ended, the endpoint's first"},
	ClientReset:        {"client-reset", FaultClient, "the client reset the connection"},
	EndpointReset:      {"endpoint-reset", FaultEndpoint, "the endpoint reset the connection; UDP: it had answered and now refuses"},
	NoResponse:         {"no-response", FaultNone, "not a failure: the client sent data and got no byte from the endpoint. The client reset the connection; or it closed its side and the endpoint did not within `--half-closed-timeout`; or the endpoint closed first, or the client was lost, although endpoints of the port respond to other clients"},
	HalfClosed:         {"half-closed", FaultPolicy, "no data moved for `--half-closed-timeout` after one direction was closed, or after one side closed and the other did not read the remaining data"},
	NoEndpoint:         {"no-endpoint", FaultEndpoint, "no usable endpoint"},
	AttemptsFailed:     {"attempts-failed", FaultEndpoint, "every attempt failed"},
	QueueTimeout:       {"queue-timeout", FaultEndpoint, "no endpoint had a free slot within `--queue-timeout` or the Service's own timeout, or the queue was full"},
	BypassedPortal:     {"bypassed-portal", FaultClient, "the client connected directly to usher's port"},
	SourceDenied:       {"source-denied", FaultPolicy, "the client is not in `loadBalancerSourceRanges`"},
	ProxyHeaderInvalid: {"proxy-header-invalid", FaultClient, "the load balancer sent no PROXY protocol header, an invalid one, or did not complete it in time; see the error"},
	Limit:              {"limit", FaultNode, "too many connections, or the node is out of descriptors or memory; SCTP: a message was too large; UDP: usher ended the session that was idle longest for a newer one, or the first datagram's hop limit was exhausted"},
	Drained:            {"drained", FaultNode, "usher was stopped and `--drain-timeout` had passed; UDP sessions end as soon as usher is stopped"},
	MaxAge:             {"max-age", FaultPolicy, "the connection reached `--max-connection-age`"},
	Idle:               {"idle", FaultNone, "no data for `--connection-idle-timeout`; UDP: no datagram in either direction for `--udp-idle-timeout`, or for 1 min before the first response"},
	EndpointDrained:    {"endpoint-drained", FaultPolicy, "the endpoint had been removed or terminating for `--endpoint-drain-timeout`"},
	EndpointRemoved:    {"endpoint-removed", FaultPolicy, "UDP: the endpoint was removed or no longer serves"},
	VIPRemoved:         {"vip-removed", FaultPolicy, "UDP: the Service, or the VIP that the client used, was removed"},
	Internal:           {"internal", FaultUsher, "internal error in usher; see the error"},
}

// String returns the word for o; "" for Open.
func (o Outcome) String() string { return words[o].word }

// Fault returns the party that caused o.
func (o Outcome) Fault() Fault { return words[o].fault }

// Meaning describes o for users; "" for Open.
func (o Outcome) Meaning() string { return words[o].meaning }

// Named returns the Outcome that word stands for. It returns Open for unknown words, which another version may use.
func Named(word string) Outcome {
	for o := range words {
		if words[o].word == word {
			return Outcome(o)
		}
	}
	return Open
}

// Words returns the words of all outcomes but Open, in the order of the constants.
func Words() (all []string) {
	for o := ClientClosed; o < Outcomes; o++ {
		all = append(all, o.String())
	}
	return all
}

// Result is the outcome of a connection, its cause, and the bytes forwarded.
type Result struct {
	Outcome              Outcome
	Err                  error         // the cause; nil if Outcome says everything
	ToEndpoint, ToClient int64         // bytes
	Queued               time.Duration // total time in the queue of a client that got no endpoint
}

// Cause returns the text of Err, or "".
func (r Result) Cause() string {
	if r.Err == nil {
		return ""
	}
	return r.Err.Error()
}
