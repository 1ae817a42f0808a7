package api

// Prefix is what the path of every route begins with.
const Prefix = "/api/v1"

// Route is one thing that can be asked for.
type Route struct {
	// Path is behind Prefix, with {name} for what is to be filled in.
	Path    string
	Summary string
	Params  []Param
	// Answer is a value of the type that the body of 200 has.
	Answer any
	// Stream says that the body is a stream of server-sent events, whose data are
	// values like Answer.
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
	// Enum are the values that are allowed; none means any.
	Enum     []string
	Required bool
}

func query(name, text string, enum ...string) Param {
	return Param{Name: name, In: "query", Type: "string", Text: text, Enum: enum}
}

// Parameters that several routes have.
var (
	limitParam    = Param{Name: "limit", In: "query", Type: "integer", Text: "how many items at the most, 1 to 1000; 100 without it"}
	continueParam = query("continue", "the value of continue in the page before")
	serviceParam  = query("service", "a Service, namespace/name")
	clientParam   = query("client", "a client: an address, an address and port, or a network such as 10.1.0.0/16")
	endpointParam = query("endpoint", "an endpoint, by address, address and port, or Pod (namespace/name)")
	protocolParam = query("protocol", "a protocol", "TCP", "UDP", "SCTP")
	slowerParam   = query("slowerThan", "a time, such as 200ms: only connections whose clients waited for longer until the endpoint's first byte came or, while none has, until they were established")
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
	SortDuration    = "duration"
	SortConnect     = "connect"
	SortFirstByte   = "first-byte"
)

// ServiceKeys are what Services can be sorted by, besides their names, the largest first.
var ServiceKeys = map[string]func(Totals) int64{
	SortActive:      func(t Totals) int64 { return t.Active },
	SortConnections: func(t Totals) int64 { return t.Accepted },
	SortFailed:      func(t Totals) int64 { return t.Failed },
	SortRetries:     func(t Totals) int64 { return t.Retries },
	SortBytes:       func(t Totals) int64 { return t.BytesToEndpoint + t.BytesToClient },
}

// Values of the parameter outcome of /events.
const (
	OutcomeOK     = "ok"     // steps of connections that were established
	OutcomeRetry  = "retry"  // attempts that failed, and what followed them
	OutcomeFailed = "failed" // ends of connections that did not come about, or were broken by their endpoints
)

// Routes are all there are, except for openapi.json itself.
var Routes = []Route{
	{Path: "/status", Summary: "the proxy as a whole: version, portal, limits, totals", Answer: Status{}},
	{Path: "/ends", Summary: "how connections can end, with what each code means", Answer: EndList{}},
	{Path: "/services", Summary: "Services in short", Answer: ServiceList{}, Params: []Param{
		query("namespace", "a namespace"),
		query("name", "a Service's name, without namespace"),
		query("service", "a Service, namespace/name; may be given several times"),
		query("q", "text that the namespace/name, a port's name, a VIP, or an endpoint's address or Pod contains; case does not count"),
		query("state", "a state", serviceStates()...),
		protocolParam,
		query("sort", "by what; all but name begin with the largest", SortName, SortActive, SortConnections, SortFailed, SortRetries, SortBytes),
		limitParam, continueParam,
	}},
	{Path: "/services/{namespace}/{name}", Summary: "all about one Service", Answer: ServiceDetail{}, Params: []Param{
		{Name: "namespace", In: "path", Type: "string", Text: "its namespace", Required: true},
		{Name: "name", In: "path", Type: "string", Text: "its name", Required: true},
	}},
	{Path: "/connections", Summary: "connections, SCTP associations and UDP sessions, the newest first", Answer: ConnectionList{}, Params: []Param{
		query("state", "open is the default; ended are those that are still known, which is the default with end and last, and all with retried, outcome and slowerThan", "open", "ended", "all"),
		serviceParam, clientParam, endpointParam, protocolParam,
		query("end", "how it ended, see /ends"),
		query("outcome", "how it went, separated by commas: ok, retried, slow, failed, no-response"),
		slowerParam,
		query("last", "a time, such as 10m: only those that ended in this time before now"),
		query("sort", "by what; all but newest begin with the largest", SortNewest, SortDuration, SortConnect, SortFirstByte, SortBytes),
		{Name: "retried", In: "query", Type: "boolean", Text: "true: only those with more than one attempt"},
		limitParam, continueParam,
	}},
	{Path: "/connections/{id}", Summary: "one connection with its attempts; one that has ended for as long as the trace has it", Answer: Connection{}, Params: []Param{
		{Name: "id", In: "path", Type: "integer", Text: "its number", Required: true},
	}},
	{Path: "/affinity", Summary: "which endpoint each client gets again, and for how long", Answer: AffinityList{}, Params: []Param{
		serviceParam, clientParam, endpointParam, limitParam, continueParam,
	}},
	{Path: "/portals", Summary: "the portal's rules: wanted against installed", Answer: Portals{}},
	{Path: "/events", Summary: "steps of connections and changes of the configuration, as they happen", Answer: Event{}, Stream: true, Params: []Param{
		serviceParam, clientParam, endpointParam, protocolParam,
		query("kind", "kinds of event, separated by commas; steps and changes stand for all steps and all changes"),
		query("outcome", "only steps of connections with this outcome, separated by commas; also the code of an end, see /ends"),
		slowerParam,
		{Name: "connection", In: "query", Type: "integer", Text: "the number of a connection"},
		{Name: "history", In: "query", Type: "boolean", Text: "true: begin with what the trace still has, and not with what comes next"},
		{Name: "follow", In: "query", Type: "boolean", Text: "false: end when the newest event has been told"},
		{Name: "rate", In: "query", Type: "integer", Text: "how many events a second at the most, 1 to 100000; 1000 without it. Those beyond it are counted by an event named missed"},
		{Name: "Last-Event-ID", In: "header", Type: "string", Text: "go on behind this event; what is gone is counted by an event named missed"},
	}},
	{Path: "/explain", Summary: "a dry run: which endpoints a client would get, in which order, and why", Answer: Explanation{}, Params: []Param{
		{Name: "service", In: "query", Type: "string", Text: "the Service, namespace/name or name (namespace default)", Required: true},
		query("port", "name or number of the service port; needed if there are several"),
		query("client", "the client's address; without it, a client that is not known"),
		query("vip", "the VIP that the client connects to, an address or address:port; the first one of the client's family without it"),
	}},
}

func serviceStates() (names []string) {
	for _, s := range ServiceStates {
		names = append(names, string(s))
	}
	return names
}

// Values returns the values that are allowed for a route's parameter.
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
