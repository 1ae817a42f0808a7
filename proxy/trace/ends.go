package trace

// End says how a connection ended. There is one for each; it is the same in
// every place that shows it.
type End string

// The ends of a connection. Ends says what they mean.
const (
	ClientClosed      End = "client-closed"
	EndpointClosed    End = "endpoint-closed"
	ClientReset       End = "client-reset"
	EndpointReset     End = "endpoint-reset"
	Unanswered        End = "unanswered"
	HalfClosedTimeout End = "half-closed"
	NoEndpoint        End = "no-endpoint"
	QueueTimeout      End = "queue-timeout"
	AttemptsFailed    End = "attempts-failed"
	NotAdmitted       End = "not-through-portal"
	SourceRefused     End = "source-refused"
	HeaderRefused     End = "header-refused"
	Limit             End = "limit"
	Drained           End = "drained"
	Aged              End = "aged"
	Idle              End = "idle"
	EndpointDrained   End = "endpoint-drained"
	EndpointLeft      End = "endpoint-left"
	Withdrawn         End = "withdrawn"
	Internal          End = "internal"
)

// Fault says whose doing an end is.
type Fault string

// The faults.
const (
	FaultNone     Fault = "none" // a normal end
	FaultClient   Fault = "client"
	FaultEndpoint Fault = "endpoint"
	FaultPolicy   Fault = "policy" // it is meant to be refused, or to end
	FaultNode     Fault = "node"   // limits, and shutting down
	FaultUsher    Fault = "usher"
)

// Fault returns whose doing e is.
func (e End) Fault() Fault {
	if f, ok := faults[e]; ok {
		return f
	}
	return FaultUsher
}

// faults are those of Ends: it is asked for each connection that ends.
var faults = func() map[End]Fault {
	all := map[End]Fault{}
	for _, e := range Ends {
		all[e.End] = e.Fault
	}
	return all
}()

// EndMeaning is what people are told about an End.
type EndMeaning struct {
	End     End
	Meaning string
	Fault   Fault
}

// Ends are all the ends there are. docs/life-of-a-connection.md has the same
// table.
var Ends = []EndMeaning{
	{ClientClosed, "both directions ended, the client's first", FaultNone},
	{EndpointClosed, "both directions ended, the endpoint's first", FaultNone},
	{ClientReset, "the client broke the connection off", FaultClient},
	{EndpointReset, "the endpoint broke the connection off; for UDP, it had answered and now refuses", FaultEndpoint},
	{Unanswered, "the endpoint ended first, without a byte for a client that had sent some; no failure, since some protocols have no answers", FaultNone},
	{HalfClosedTimeout, "one direction had ended, or one side had and the other did not take what came before that, and nothing moved for `--half-closed-timeout`", FaultPolicy},
	{NoEndpoint, "there was no endpoint to try", FaultEndpoint},
	{AttemptsFailed, "every attempt failed", FaultEndpoint},
	{QueueTimeout, "no endpoint had room for another connection in `--queue-timeout`, or in what the Service says", FaultEndpoint},
	{NotAdmitted, "it came straight to usher's port", FaultClient},
	{SourceRefused, "the client is not in `loadBalancerSourceRanges`", FaultPolicy},
	{HeaderRefused, "it came from a load balancer and did not begin with a header of the PROXY protocol, or with a wrong one, or did not send all of it in time; the error tells", FaultClient},
	{Limit, "too many connections, or the node has run out of descriptors, memory or ports; a UDP session: another client needed the room, and this one had been idle longest, or the first datagram's hop limit was used up", FaultNode},
	{Drained, "usher was stopped, and `--drain-timeout` was over; a UDP session ends as soon as usher is stopped", FaultNode},
	{Aged, "it had reached `--max-connection-age`", FaultPolicy},
	{Idle, "nothing moved for `--connection-idle-timeout`; UDP: no datagram either way for `--udp-idle-timeout`, or for 1 min before the first answer", FaultNone},
	{EndpointDrained, "the endpoint had left, or was terminating, for `--endpoint-drain-timeout`", FaultPolicy},
	{EndpointLeft, "UDP: the endpoint left, or serves no more", FaultPolicy},
	{Withdrawn, "UDP: the Service, or the VIP that the client used, was taken away", FaultPolicy},
	{Internal, "a fault of usher's; the error tells", FaultUsher},
}

// EndCodes returns the codes of all Ends.
func EndCodes() (codes []string) {
	for _, e := range Ends {
		codes = append(codes, string(e.End))
	}
	return codes
}
