package api

// What usher demo answers besides /api/v1, on the same server. No other usher has
// these paths. POST needs DemoHeader, so that no page of another site can send it.
const (
	DemoEndpointsPath = "/demo/endpoints" // GET: DemoEndpointList
	DemoBreakPath     = "/demo/break"     // POST DemoBreak: DemoEndpoint
	DemoMendPath      = "/demo/mend"      // POST DemoMend: DemoEndpointList, those that were mended

	DemoHeader = "X-Usher-Demo" // with any value
)

// DemoEndpointList is the list of the demo's servers.
type DemoEndpointList struct {
	Page
	Items []DemoEndpoint `json:"items"`
}

// DemoEndpoint is one of the demo's servers.
type DemoEndpoint struct {
	Endpoint string `json:"endpoint"`
	Pod      string `json:"pod"`
	Service  string `json:"service"`
	Protocol string `json:"protocol"`
	// Does says in a sentence what it does with its clients now.
	Does string `json:"does"`
	// Broken is the fault that it has now; left out if it has none.
	Broken string `json:"broken,omitempty"`
	// Can are the faults that it can be given, those with a value with one that can be changed.
	Can []string `json:"can"`
}

// The faults that the demo's servers can be given.
const (
	DemoRefuse     = "refuse"      // connections are refused
	DemoBlackhole  = "blackhole"   // nothing answers
	DemoSlow       = "slow"        // answers come late
	DemoReset      = "reset"       // connections are accepted and reset; "reset=10%": that share, after the request
	DemoDelay      = "delay"       // "delay=300ms": answers come so late
	DemoFlaky      = "flaky"       // "flaky=2%": connections are refused for that share of each second; that share of datagrams has no answer
	DemoSlowAccept = "slow-accept" // connections wait until they are accepted, or nothing answers
	DemoHalfOpen   = "half-open"   // connections are accepted, and have neither answer nor end
	DemoHalfClose  = "half-close"  // the server's direction ends without an answer, the client's goes on
)

// DemoBreak says what is to be broken.
type DemoBreak struct {
	// Endpoint is an address and port, or the Pod's name, with or without
	// namespace.
	Endpoint string `json:"endpoint"`
	// How is a fault, with its value if it has one: "refuse", "reset=10%".
	How string `json:"how"`
}

// DemoMend says what is to be mended.
type DemoMend struct {
	Endpoint string `json:"endpoint,omitempty"` // as in DemoBreak
	All      bool   `json:"all,omitempty"`      // instead of Endpoint
}
