// Package cluster is what the ushers of several nodes tell, put together: is it the Pod, or is it
// the node?
//
//	ushers' APIs ──▶ View: asks them (view.go, fanout.go)
//	                   ├─ nodes.go, services.go: how each node, and each Service, fares
//	                   └─ service.go: endpoints × nodes ──▶ verdict.go: whose fault it is
//	browser ◀── Handler: API, pages, and the pages of single nodes (handler.go)
//
// Nobody is asked anything while nobody looks. A round of questions begins when somebody asks for an answer that
// is older than a few seconds, it has a bound on how many ushers are asked at once, and
// rounds take at most a fifth of the time. What is kept of them is bounded too: see maxCells, maxQuestions.
//
// It changes nothing, and passes on to a node only what the node's own page asks.
package cluster
