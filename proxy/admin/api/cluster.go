package api

import "time"

// ClusterPrefix is the path prefix of all ClusterRoutes.
const ClusterPrefix = Prefix + "/cluster"

// ClusterRoutes are the routes of kubectl usher dashboard, which queries usher on several nodes. An answer is
// a few seconds old while all nodes respond quickly, and up to two minutes old when they are slow; Asked is
// its time.
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

// ClusterNodeList is the list of nodes, sorted by name.
type ClusterNodeList struct {
	Asked time.Time     `json:"asked"`
	Items []ClusterNode `json:"items"`
}

// ClusterNode is a node, with the state of usher on it.
type ClusterNode struct {
	Name string `json:"name"`
	// Error is the reason that usher on the node does not answer; left out if it does. If it is set, all
	// fields below are left out.
	Error      string `json:"error,omitempty"`
	Version    string `json:"version,omitempty"`
	PortalMode string `json:"portalMode,omitempty"`
	// Problems is the number of problems on the node, Attention a one-sentence summary. Since is as in Status.
	Problems  int       `json:"problems,omitempty"`
	Attention string    `json:"attention,omitempty"`
	Since     time.Time `json:"since,omitzero"`
	Totals    *Totals   `json:"totals,omitempty"`
}

// ClusterServiceList is a list of Services over all nodes: at most 50, the worst first. Without q, Services
// with problems or failures come first, then those with the most connections.
type ClusterServiceList struct {
	Asked time.Time `json:"asked"`
	// Total is the number of Services or, with q, of those that match.
	Total int              `json:"total"`
	Items []ClusterService `json:"items"`
}

// ClusterService is the summary of a Service over all nodes.
type ClusterService struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// State is the worst state on any node, States the number of nodes in each state.
	State  ServiceState         `json:"state"`
	States map[ServiceState]int `json:"states"`
	// NodeCount is the number of nodes that know the Service. FailingOn is the number of those on which an
	// endpoint is an outlier, unresponsive or in quarantine.
	NodeCount int `json:"nodeCount"`
	FailingOn int `json:"failingOn"`
	// EndpointCount is the number of endpoints, on the node that knows the most.
	EndpointCount int `json:"endpointCount"`
	// Totals are the sums over the nodes.
	Totals Totals `json:"totals"`
	// ConnectP99Ms is the largest value of any node: see Latency. Left out if there were no recent
	// connections.
	ConnectP99Ms float64 `json:"connectP99Ms,omitempty"`
	// Message is the message of a node in that state; left out if there is no problem.
	Message string `json:"message,omitempty"`
}

// ClusterServiceDetail is a Service as each node sees it. Cells of Endpoints are in the order of Nodes.
// Recent means the last 5 to 10 minutes.
type ClusterServiceDetail struct {
	ClusterService
	Asked time.Time `json:"asked"`
	// Findings are the problems found and their causes, the most certain first: at most 10. FindingsOmitted is
	// the number of further ones.
	Findings        []ClusterFinding `json:"findings"`
	FindingsOmitted int              `json:"findingsOmitted,omitempty"`
	// Nodes lists at most 50 nodes, and Endpoints at most 100 endpoints, failing ones first. NodesOmitted and
	// EndpointsOmitted are the numbers of further ones that were examined.
	Nodes            []ClusterColumn   `json:"nodes"`
	NodesOmitted     int               `json:"nodesOmitted,omitempty"`
	Endpoints        []ClusterEndpoint `json:"endpoints"`
	EndpointsOmitted int               `json:"endpointsOmitted,omitempty"`
	// NodesUnasked is the number of nodes that know the Service but were not queried for its endpoints,
	// because there are too many of both. Those with the most failures and the most connections were queried.
	NodesUnasked int `json:"nodesUnasked,omitempty"`
}

// ClusterFault is the cause of failing connections.
type ClusterFault string

// The faults.
const (
	FaultPod     ClusterFault = "pod"     // most nodes that had connections to the endpoint fail
	FaultNode    ClusterFault = "node"    // most endpoints that the node had connections to fail from there, and not from others
	FaultPath    ClusterFault = "path"    // one node fails, others reach the endpoint
	FaultAll     ClusterFault = "all"     // every endpoint fails on every node
	FaultUnclear ClusterFault = "unclear" // there were not enough connections to decide
)

// ClusterFinding is one problem.
type ClusterFinding struct {
	Fault ClusterFault `json:"fault"`
	// Endpoint and Node are the ones affected; each is left out if there are several.
	Endpoint string `json:"endpoint,omitempty"`
	Node     string `json:"node,omitempty"`
	// Text describes it in a sentence.
	Text string `json:"text"`
}

// ClusterColumn is a node, with respect to one Service.
type ClusterColumn struct {
	Name string `json:"name"`
	// Error is the reason that usher on the node does not answer; left out if it does.
	Error string       `json:"error,omitempty"`
	State ServiceState `json:"state,omitempty"`
	// Fault is FaultNode if this node is the cause; left out if not.
	Fault ClusterFault `json:"fault,omitempty"`
	ClusterCounts
}

// ClusterEndpoint is an endpoint as each node sees it.
type ClusterEndpoint struct {
	Address string `json:"address"`
	Pod     string `json:"pod,omitempty"`
	// Node is the node that the endpoint runs on.
	Node string `json:"node,omitempty"`
	// Fault is FaultPod if this endpoint is the cause; left out if not.
	Fault ClusterFault `json:"fault,omitempty"`
	ClusterCounts
	Cells []ClusterCell `json:"cells"`
}

// ClusterCounts are the counts of a row or a column.
type ClusterCounts struct {
	// Bad and Good are the numbers of its bad and good cells.
	Bad  int `json:"bad"`
	Good int `json:"good"`
	// Tried and Failed are the sums of its cells.
	Tried  int64 `json:"tried"`
	Failed int64 `json:"failed"`
}

// ClusterResult is the result of a node's recent connections to an endpoint.
type ClusterResult string

// The results.
const (
	ResultGood    ClusterResult = "good"    // it answers
	ResultBad     ClusterResult = "bad"     // it is in quarantine, an outlier or unresponsive, or at least one attempt in ten fails
	ResultUnknown ClusterResult = "unknown" // there were not enough connections to decide
)

// ClusterCell is an endpoint as one node sees it.
type ClusterCell struct {
	// State is left out, as are all other fields, if the node does not know the endpoint, or was not queried.
	State  EndpointState `json:"state,omitempty"`
	Result ClusterResult `json:"result,omitempty"`
	// Tried is the number of recent connections to it and failed attempts. Failed is the number of attempts
	// that failed and of connections that it broke.
	Tried  int64 `json:"tried,omitempty"`
	Failed int64 `json:"failed,omitempty"`
	// ConnectP99Ms is as in Latency; left out if there were no recent connections.
	ConnectP99Ms float64 `json:"connectP99Ms,omitempty"`
	// Cause is the reason for its quarantine; left out if it is not in quarantine.
	Cause string `json:"cause,omitempty"`
}
