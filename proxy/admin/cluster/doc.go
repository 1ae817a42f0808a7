// Package cluster combines the answers of usher on several nodes, to decide whether a failure is caused by
// the Pod or by the node.
//
//	usher on nodes ──▶ View: queries them (view.go, fanout.go)
//	                   ├─ nodes.go, services.go: the state of each node, and of each Service
//	                   └─ service.go: endpoints × nodes ──▶ verdict.go: the cause
//	browser ◀── Handler: API, pages, and the pages of single nodes (handler.go)
//
// It sends no queries while it has no readers. A round of queries begins when a reader requests an answer
// that is older than a few seconds. The number of concurrent requests is limited. The pause after a round is
// four times as long as the round took, but at most a minute. The kept data is limited, too: see maxCells,
// maxQuestions.
//
// It changes nothing, and passes on to a node only the requests of the node's own page.
package cluster
