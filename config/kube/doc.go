// Package kube is the source that watches a Kubernetes API server.
//
// Shared informers store the Services, the EndpointSlices and this node's Node. An event marks its Service dirty. After
// a short quiet time package translate recomputes only the dirty Services, and the source passes on those that changed.
// So the cost of a change is proportional to the change.
//
// Nothing is passed on before the first lists of Services and EndpointSlices are complete. While the API server is
// unreachable, the known state stays, and client-go's informers list and watch again with back-off; [Reach] reports
// this. client-go has no back-off if every watch is answered with 410 Gone: Reach then delays the answers,
// increasingly.
//
// It is the only package that imports client-go's informers. [Client] sends its requests. The package also writes
// Events for users that inspect a Service with kubectl.
package kube
