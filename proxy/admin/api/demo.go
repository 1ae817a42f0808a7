package api

// The additional paths of usher demo, on the same server as /api/v1. Other usher processes do not have them. A POST
// must have DemoHeader, so that no page of another site can send it.
const (
	DemoEndpointsPath = "/demo/endpoints" // GET: DemoEndpointList
	DemoBreakPath     = "/demo/break"     // POST DemoBreak: DemoEndpoint
	DemoRepairPath    = "/demo/repair"    // POST DemoRepair: DemoEndpointList, the repaired ones

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
	// Does describes in a sentence what it currently does with its clients.
	Does string `json:"does"`
	// Broken is its current fault; left out if it has none.
	Broken string `json:"broken,omitempty"`
	// Can lists the faults that it supports. A fault with a value is listed with an example of it.
	Can []string `json:"can"`
}

// The faults that the demo's servers support.
const (
	DemoRefuse     = "refuse"      // connections are refused
	DemoBlackhole  = "blackhole"   // nothing answers
	DemoSlow       = "slow"        // answers come late
	DemoReset      = "reset"       // connections are accepted and reset; "reset=10%": that share, after the request
	DemoDelay      = "delay"       // "delay=300ms": answers come that much later
	DemoFlaky      = "flaky"       // "flaky=2%": connections are refused for that share of each second; that share of datagrams has no answer
	DemoSlowAccept = "slow-accept" // connections wait until they are accepted, or nothing answers
	DemoHalfOpen   = "half-open"   // connections are accepted, but get no answer and no end
	DemoHalfClose  = "half-close"  // the server's direction ends without an answer, the client's stays open
)

// DemoBreak is the server to break, and the fault.
type DemoBreak struct {
	// Endpoint is an address and port, or the Pod's name, with or without
	// namespace.
	Endpoint string `json:"endpoint"`
	// How is a fault, with its value if it has one: "refuse", "reset=10%".
	How string `json:"how"`
}

// DemoRepair is the server to repair.
type DemoRepair struct {
	Endpoint string `json:"endpoint,omitempty"` // as in DemoBreak
	All      bool   `json:"all,omitempty"`      // instead of Endpoint
}
