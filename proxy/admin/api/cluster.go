package api

import "time"

// ClusterPrefix is what the path of every route of ClusterRoutes begins with.
const ClusterPrefix = Prefix + "/cluster"

// ClusterRoutes are what kubectl usher dashboard answers, which asks the ushers of several nodes. An
// answer is some seconds old while all of them are quick, and up to two minutes where
// asking takes long: Asked says when that was.
var ClusterRoutes = []Route{
	{Path: "/nodes", Summary: "the nodes, and the state of usher on each", Answer: ClusterNodeList{}},
	{Path: "/services", Summary: "Services over all nodes, the worst first", Answer: ClusterServiceList{}, Params: []Param{
		query("q", "text contained in the namespace/name, a port's name, a VIP, or an endpoint's address or Pod; not case-sensitive"),
	}},
	{Path: "/services/{namespace}/{name}", Summary: "one Service: its endpoints as seen by each node, and the cause of failures", Answer: ClusterServiceDetail{}, Params: []Param{
		{Name: "namespace", In: "path", Type: "string", Text: "its namespace", Required: true},
		{Name: "name", In: "path", Type: "string", Text: "its name", Required: true},
	}},
}

// ClusterNodeList are the nodes, sorted by name.
type ClusterNodeList struct {
	Asked time.Time     `json:"asked"`
	Items []ClusterNode `json:"items"`
}

// ClusterNode is a node, and what its usher tells of itself.
type ClusterNode struct {
	Name string `json:"name"`
	// Error says why its usher does not answer; left out if it does, and all that follows if not.
	Error      string `json:"error,omitempty"`
	Version    string `json:"version,omitempty"`
	PortalMode string `json:"portalMode,omitempty"`
	// Problems is how many it knows of, Attention says it in a sentence, Since since when: see Status.
	Problems  int       `json:"problems,omitempty"`
	Attention string    `json:"attention,omitempty"`
	Since     time.Time `json:"since,omitzero"`
	Totals    *Totals   `json:"totals,omitempty"`
}

// ClusterServiceList are Services over all nodes: at most 50, the worst first. Without q, these
// are the ones with problems or failures, and then those with the most connections.
type ClusterServiceList struct {
	Asked time.Time `json:"asked"`
	// Total is how many Services there are or, with q, match.
	Total int              `json:"total"`
	Items []ClusterService `json:"items"`
}

// ClusterService is a Service over all nodes, in short.
type ClusterService struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// State is the worst that a node tells, States is how many nodes tell which.
	State  ServiceState         `json:"state"`
	States map[ServiceState]int `json:"states"`
	// NodeCount is how many know the Service, FailingOn on how many of those an endpoint is an outlier, unresponsive or
	// in quarantine.
	NodeCount int `json:"nodeCount"`
	FailingOn int `json:"failingOn"`
	// EndpointCount is how many there are, on the node that knows of the most.
	EndpointCount int `json:"endpointCount"`
	// Totals are the sums over the nodes.
	Totals Totals `json:"totals"`
	// ConnectP99Ms is the longest of the nodes: see Latency. Left out if there were no connections lately.
	ConnectP99Ms float64 `json:"connectP99Ms,omitempty"`
	// Message is what a node in that state tells; left out if nothing is wrong.
	Message string `json:"message,omitempty"`
}

// ClusterServiceDetail is a Service as each node sees it. Cells of Endpoints are in the order of Nodes.
// What was seen lately is what was seen in the last 5 to 10 minutes.
type ClusterServiceDetail struct {
	ClusterService
	Asked time.Time `json:"asked"`
	// Findings say what is wrong, and whose fault it is, the surest first: at most 10. FindingsUntold is how
	// many more there are.
	Findings       []ClusterFinding `json:"findings"`
	FindingsUntold int              `json:"findingsUntold,omitempty"`
	// Nodes are at most 50, and Endpoints at most 100, those that fail first.
	// NodesUntold and EndpointsUntold are how many more were looked at.
	Nodes           []ClusterColumn   `json:"nodes"`
	NodesUntold     int               `json:"nodesUntold,omitempty"`
	Endpoints       []ClusterEndpoint `json:"endpoints"`
	EndpointsUntold int               `json:"endpointsUntold,omitempty"`
	// NodesUnasked is how many nodes know the Service and were not asked for its endpoints, since there are
	// too many of both. Those with the most failures and the most connections were.
	NodesUnasked int `json:"nodesUnasked,omitempty"`
}

// ClusterFault says whose fault it is that connections fail.
type ClusterFault string

// The faults.
const (
	FaultPod     ClusterFault = "pod"     // most nodes that had connections to the endpoint fail
	FaultNode    ClusterFault = "node"    // most endpoints that the node had connections to fail from there, and not from others
	FaultPath    ClusterFault = "path"    // one node fails, others reach the endpoint
	FaultAll     ClusterFault = "all"     // every endpoint fails on every node
	FaultUnclear ClusterFault = "unclear" // there were not enough connections to tell
)

// ClusterFinding is something that is wrong.
type ClusterFinding struct {
	Fault ClusterFault `json:"fault"`
	// Endpoint and Node are what it is about; each is left out where it is about several.
	Endpoint string `json:"endpoint,omitempty"`
	Node     string `json:"node,omitempty"`
	// Text says it in a sentence.
	Text string `json:"text"`
}

// ClusterColumn is a node, as far as one Service goes.
type ClusterColumn struct {
	Name string `json:"name"`
	// Error says why its usher does not tell; left out if it does.
	Error string       `json:"error,omitempty"`
	State ServiceState `json:"state,omitempty"`
	// Fault is FaultNode if it is this node's; left out if not.
	Fault ClusterFault `json:"fault,omitempty"`
	ClusterCounts
}

// ClusterEndpoint is an endpoint as each node sees it.
type ClusterEndpoint struct {
	Address string `json:"address"`
	Pod     string `json:"pod,omitempty"`
	// Node is the one that the endpoint is on.
	Node string `json:"node,omitempty"`
	// Fault is FaultPod if it is this endpoint's; left out if not.
	Fault ClusterFault `json:"fault,omitempty"`
	ClusterCounts
	Cells []ClusterCell `json:"cells"`
}

// ClusterCounts are those of a row or a column.
type ClusterCounts struct {
	// Bad is how many of its cells are, and Good.
	Bad  int `json:"bad"`
	Good int `json:"good"`
	// Tried and Failed are the sums of its cells.
	Tried  int64 `json:"tried"`
	Failed int64 `json:"failed"`
}

// ClusterResult says what connections of a node to an endpoint were like lately.
type ClusterResult string

// The results.
const (
	ResultGood    ClusterResult = "good"    // it answers
	ResultBad     ClusterResult = "bad"     // it is in quarantine, an outlier or unresponsive, or one attempt in ten fails
	ResultUnknown ClusterResult = "unknown" // there were not enough connections to tell
)

// ClusterCell is an endpoint as one node sees it.
type ClusterCell struct {
	// State is left out if the node does not know the endpoint, or was not asked; then all else is.
	State  EndpointState `json:"state,omitempty"`
	Result ClusterResult `json:"result,omitempty"`
	// Tried is how many connections there were to it lately, and failed attempts; Failed how many attempts
	// failed, and how many connections it broke.
	Tried  int64 `json:"tried,omitempty"`
	Failed int64 `json:"failed,omitempty"`
	// ConnectP99Ms is as in Latency; left out if there were no connections lately.
	ConnectP99Ms float64 `json:"connectP99Ms,omitempty"`
	// Cause is why it is in quarantine; left out if it is not.
	Cause string `json:"cause,omitempty"`
}
