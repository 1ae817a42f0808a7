package api

// Prefix is the path prefix of all routes.
const Prefix = "/api/v1"

// Route is one resource of the API.
type Route struct {
	// Path follows Prefix, with {name} for parameters.
	Path    string
	Summary string
	Params  []Param
	// Answer is a value of the type that the body of 200 has.
	Answer any
	// Stream means that the body is a stream of server-sent events, whose data are values like Answer.
	Stream bool
}

// Param is a parameter of a route.
type Param struct {
	Name string
	// In is path, query or header.
	In   string
	Text string
	// Type is string, integer or boolean.
	Type string
	// Enum are the allowed values; none means any.
	Enum     []string
	Required bool
}

func query(name, text string, enum ...string) Param {
	return Param{Name: name, In: "query", Type: "string", Text: text, Enum: enum}
}

// Parameters that several routes have.
var (
	limitParam    = Param{Name: "limit", In: "query", Type: "integer", Text: "maximum number of items, 1 to 1000; default 100"}
	continueParam = query("continue", "the value of continue in the previous page")
	serviceParam  = query("service", "a Service, namespace/name")
	clientParam   = query("client", "a client: an address, an address and port, or a network such as 10.1.0.0/16")
	endpointParam = query("endpoint", "an endpoint, by address, address and port, or Pod (namespace/name)")
	protocolParam = query("protocol", "a protocol", "TCP", "UDP", "SCTP")
	slowerParam   = query("slowerThan", "a duration, such as 200ms: only connections that took longer to the endpoint's first byte or, without one, to be established")
)

// Sort orders for /services, and for /connections.
const (
	SortName        = "name"
	SortActive      = "active"
	SortConnections = "connections"
	SortFailed      = "failed"
	SortRetries     = "retries"
	SortBytes       = "bytes" // for both
	SortNewest      = "newest"
	SortAttempts    = "attempts"
	SortDuration    = "duration"
	SortConnect     = "connect"
	SortFirstByte   = "first-byte"
)

// ServiceKeys are the sort keys of Services other than their names; largest first.
var ServiceKeys = map[string]func(Totals) int64{
	SortActive:      func(t Totals) int64 { return t.Active },
	SortConnections: func(t Totals) int64 { return t.Accepted },
	SortFailed:      func(t Totals) int64 { return t.Failed },
	SortRetries:     func(t Totals) int64 { return t.Retries },
	SortBytes:       func(t Totals) int64 { return t.BytesToEndpoint + t.BytesToClient },
}

// Values of the parameter outcome of /events.
const (
	OutcomeOK     = "ok"     // established, and ends of connections that did not fail and got a response
	OutcomeRetry  = "retry"  // attempts that failed, later attempts of the same connection, and waits
	OutcomeFailed = "failed" // ends of connections that were not established, or were broken by their endpoints
)

// Routes are all routes except openapi.json itself.
var Routes = []Route{
	{Path: "/status", Summary: "the proxy as a whole: version, portal, limits, totals", Answer: Status{}},
	{Path: "/ends", Summary: "how connections can end, and the meaning of each code", Answer: EndList{}},
	{Path: "/services", Summary: "Services, in short form", Answer: ServiceList{}, Params: []Param{
		query("namespace", "a namespace"),
		query("name", "a Service's name, without namespace"),
		query("service", "a Service, namespace/name; may be given several times"),
		query("q", "text contained in the namespace/name, a port's name, a VIP, or an endpoint's address or Pod; not case-sensitive"),
		query("state", "a state", Names(ServiceStates)...),
		protocolParam,
		query("sort", "sort key; all except name sort in descending order", SortName, SortActive, SortConnections, SortFailed, SortRetries, SortBytes),
		limitParam, continueParam,
	}},
	{Path: "/services/{namespace}/{name}", Summary: "one Service in detail", Answer: ServiceDetail{}, Params: []Param{
		{Name: "namespace", In: "path", Type: "string", Text: "its namespace", Required: true},
		{Name: "name", In: "path", Type: "string", Text: "its name", Required: true},
	}},
	{Path: "/connections", Summary: "connections, SCTP associations and UDP sessions, the newest first", Answer: ConnectionList{}, Params: []Param{
		query("state", "default: open; with end or last: ended; with retried, outcome or slowerThan: all. ended covers the connections still recorded", "open", "ended", "all"),
		serviceParam, clientParam, endpointParam, protocolParam,
		query("end", "end codes, separated by commas; see /ends"),
		query("outcome", "outcomes, separated by commas: ok, retried, slow, failed, no-response"),
		slowerParam,
		query("last", "a duration, such as 10m: only connections that ended within this time"),
		query("sort", "sort key; all except newest sort in descending order", SortNewest, SortAttempts, SortDuration, SortConnect, SortFirstByte, SortBytes),
		{Name: "retried", In: "query", Type: "boolean", Text: "true: only connections with more than one attempt"},
		limitParam, continueParam,
	}},
	{Path: "/connections/{id}", Summary: "one connection with its attempts; ended connections as long as they are in the trace", Answer: Connection{}, Params: []Param{
		{Name: "id", In: "path", Type: "integer", Text: "its number", Required: true},
	}},
	{Path: "/affinity", Summary: "session affinity: the endpoint of each client, and for how long", Answer: AffinityList{}, Params: []Param{
		serviceParam, clientParam, endpointParam, limitParam, continueParam,
	}},
	{Path: "/portals", Summary: "the portal's rules: required and installed", Answer: Portals{}},
	{Path: "/events", Summary: "steps of connections and changes of the configuration, as they happen", Answer: Event{}, Stream: true, Params: []Param{
		serviceParam, clientParam, endpointParam, protocolParam,
		query("kind", "kinds of event, separated by commas; steps and changes select all steps and all changes"),
		query("outcome", "only steps of connections with this outcome, separated by commas; also the code of an end, see /ends"),
		slowerParam,
		{Name: "connection", In: "query", Type: "integer", Text: "the number of a connection"},
		{Name: "history", In: "query", Type: "boolean", Text: "true: start with the events still in the trace instead of the next one"},
		{Name: "follow", In: "query", Type: "boolean", Text: "false: end after the newest event"},
		{Name: "rate", In: "query", Type: "integer", Text: "maximum number of events per second, 1 to 100000; default 1000. An event named missed counts the events beyond it"},
		{Name: "Last-Event-ID", In: "header", Type: "string", Text: "continue after this event; an event named missed counts the events that are no longer available"},
	}},
	{Path: "/explain", Summary: "a dry run: which endpoints a client would get, in which order, and why", Answer: Explanation{}, Params: []Param{
		{Name: "service", In: "query", Type: "string", Text: "the Service, namespace/name or name (namespace default)", Required: true},
		query("port", "name or number of the service port; needed if there are several"),
		query("client", "the client's address; default: an unknown client"),
		query("vip", "the VIP that the client connects to, an address or address:port; default: the first one of the client's IP family"),
	}},
}

// Names returns states as strings.
func Names[T ~string](states []T) (names []string) {
	for _, s := range states {
		names = append(names, string(s))
	}
	return names
}

// Values returns the allowed values of a route's parameter.
func Values(path, param string) []string {
	for _, r := range Routes {
		for _, p := range r.Params {
			if r.Path == path && p.Name == param {
				return p.Enum
			}
		}
	}
	return nil
}
